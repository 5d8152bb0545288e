#include <gmock/gmock.h>

#include <cstdlib>
#include <set>

#include "tests/serve/running_server.h"
#include "tests/support/source_path.h"

namespace megatron::serve {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class ServePageTest : public testing::Test {
 protected:
  json described() const { return json::parse(server_.client()->Get("/openapi.json")->body); }
  // The value that a {"$ref": "#/a/b"} names; any other itself.
  static json resolved(const json& description, const json& value) {
    if (!value.contains("$ref")) return value;
    return resolved(description,
                    description[json::json_pointer(value["$ref"].get<std::string>().substr(1))]);
  }
  // The properties of a schema and of the parts of its "allOf".
  static json properties_of(const json& description, const json& schema) {
    const json whole = resolved(description, schema);
    json properties = whole.value("properties", json::object());
    for (const json& part : whole.value("allOf", json::array())) {
      properties.update(properties_of(description, part));
    }
    return properties;
  }
  httplib::Result sent(const std::string& method, const std::string& path, const json& body) const {
    return method == "put"   ? server_.client()->Put(path, body.dump(), "application/json")
           : method == "get" ? server_.client()->Get(path)
                             : server_.post(path, body);
  }

  RunningServer server_;
};

TEST_F(ServePageTest, TheDescriptionNamesEveryRoute) {
  const json description = described();
  std::set<std::string> named;
  for (const auto& [path, item] : description["paths"].items()) {
    const json operations = resolved(description, item);
    for (const auto& [method, operation] : operations.items()) {
      std::string word;
      for (const char c : method) word += static_cast<char>(c - 'a' + 'A');
      named.insert(word + " " + path);
    }
  }
  const std::vector<std::string>& routes = server_.server->routes();
  EXPECT_EQ(named, std::set<std::string>(routes.begin(), routes.end()));
}

TEST_F(ServePageTest, TheExamplesOfTheDescriptionSucceed) {
  const json description = described();
  for (const auto& [path, item] : description["paths"].items()) {
    const json operations = resolved(description, item);
    for (const auto& [method, operation] : operations.items()) {
      json example;
      if (operation.contains("requestBody")) {
        example = operation["requestBody"]["content"]["application/json"]["example"];
      }
      const httplib::Result answer = sent(method, path, example);
      EXPECT_EQ(answer->status, 200) << path << " " << answer->body;
    }
  }
}

// A number beyond a bound of the description is refused by its name; the bound itself is not.
TEST_F(ServePageTest, TheServerHasTheBoundsOfTheDescription) {
  const json description = described();
  for (const char* const path : {"/v1/completions", "/v1/chat/completions"}) {
    const json content =
        description["paths"][path]["post"]["requestBody"]["content"]["application/json"];
    int tested = 0;
    const json properties = properties_of(description, content["schema"]);
    for (const auto& [name, property] : properties.items()) {
      const json field = resolved(description, property);
      for (const auto& [bound, step] : {std::pair{"minimum", -1}, std::pair{"maximum", 1}}) {
        if (!field.contains(bound)) continue;
        json body = content["example"];
        body["max_tokens"] = 1;
        if (name == "max_completion_tokens") body.erase("max_tokens");
        body["logprobs"] = path == std::string("/v1/completions") ? json(1) : json(true);
        body[name] = field[bound];
        // These bounds depend on other fields.
        const bool is_free = name != "top_p" && name != "best_of" && name != "min_tokens";
        if (is_free) {
          EXPECT_EQ(server_.post(path, body)->status, 200) << name << " " << bound;
        }
        if (field["type"] == "integer") {
          body[name] = field[bound].get<int64_t>() + step;
        } else {
          body[name] = field[bound].get<double>() + step;
        }
        if (name == "logprobs" && step < 0) continue;  // absent
        const json error = json::parse(server_.post(path, body)->body);
        EXPECT_EQ(error["error"]["param"], name) << error;
        ++tested;
      }
    }
    EXPECT_GE(tested, 15);
  }
}

TEST_F(ServePageTest, PagesNeedNothingFromOtherMachines) {
  for (const char* const path : {"/", "/docs"}) {
    const httplib::Result page = server_.client()->Get(path);
    EXPECT_THAT(page->body, testing::StartsWith("<!DOCTYPE html>"));
    EXPECT_THAT(page->get_header_value("Content-Security-Policy"),
                HasSubstr("default-src 'none'; script-src 'sha256-"));
    EXPECT_EQ(page->get_header_value("X-Content-Type-Options"), "nosniff");
    for (const char* const reference : {"http:", "https:", "src=\"", "@import", "url(", "innerHTML",
                                        "{{", " onclick=", "style=\""}) {
      EXPECT_THAT(page->body, Not(HasSubstr(reference))) << path;
    }
  }
}

TEST(ServePageScriptTest, TheScriptsComputeWhatTheyShow) {
  if (std::system("node --version >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "needs the program node: not run";
  }
  const std::string command =
      "node " + source_path("tests/serve/page_script.js") + " " + source_path("megatron");
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace megatron::serve
