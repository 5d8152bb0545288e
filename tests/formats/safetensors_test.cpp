#include "megatron/formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "megatron/core/error.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::HasSubstr;

std::string with_size(const std::string& header, const std::string& data) {
  const uint64_t size = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &size, sizeof(size));
  return file + header + data;
}

class SafetensorsTest : public testing::Test {
 protected:
  // Opens a file of these bytes.
  SafetensorsFile opened(const std::string& bytes) {
    // A new file each time: some file systems flush one that is truncated and rewritten.
    std::filesystem::remove(path_);
    std::ofstream(path_, std::ios::binary) << bytes;
    return SafetensorsFile(path_);
  }
  std::string refusal(const std::string& bytes) {
    try {
      opened(bytes);
    } catch (const FormatError& error) {
      return error.what();
    }
    return "accepted";
  }
  std::string header_refusal(const std::string& header, size_t data_bytes) {
    return refusal(with_size(header, std::string(data_bytes, 'x')));
  }

  TemporaryDirectory directory_;
  std::filesystem::path path_ = directory_.path() / "model.safetensors";
};

TEST_F(SafetensorsTest, WritesTheReferenceBytes) {
  const Tensor w = tensor_of(std::vector<float>{1, 2, 3, 4, 5, 6}, {2, 3});
  SafetensorsWriter writer(path_, {{"w", DType::kFloat32, {2, 3}}});
  writer.write(w.view());
  EXPECT_FALSE(std::filesystem::exists(path_));
  writer.commit();
  const std::string file = read_text(path_);
  const std::string header = R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})";
  ASSERT_EQ(header.size(), 57u);
  EXPECT_EQ(file.substr(0, 8), std::string("\x40\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(file.substr(8, 64), header + "       ");
  ASSERT_EQ(file.size(), 8u + 64u + 24u);
  EXPECT_EQ(std::memcmp(file.data() + 72, w.view().data, 24), 0);
}

TEST_F(SafetensorsTest, RoundTripsEveryType) {
  std::vector<TensorSpec> specs;
  for (const DType dtype :
       {DType::kBool, DType::kUInt8, DType::kInt8, DType::kInt16, DType::kUInt16, DType::kFloat16,
        DType::kBFloat16, DType::kInt32, DType::kUInt32, DType::kFloat32, DType::kFloat64,
        DType::kInt64, DType::kUInt64}) {
    specs.push_back({std::string(name_of(dtype)), dtype, {3, 1}});
  }
  specs.push_back({"scalar", DType::kFloat32, {}});
  specs.push_back({"empty \"quoted\" \xC3\xA9", DType::kFloat32, {0, 5}});
  SafetensorsWriter writer(path_, specs, {{"format", "pt"}, {"note", "a \"b\""}});
  ASSERT_EQ(writer.specs().size(), specs.size());
  for (const TensorSpec& spec : writer.specs()) {
    const std::vector<std::byte> fill(static_cast<size_t>(spec.bytes()),
                                      static_cast<std::byte>(spec.name.size() % 2));
    writer.write({fill.data(), spec.shape, spec.dtype});
  }
  writer.commit();

  const SafetensorsFile file(path_);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.metadata().at("note"), "a \"b\"");
  ASSERT_EQ(file.tensors().size(), specs.size());
  for (const TensorSpec& spec : specs) {
    const SafetensorsFile::Entry* tensor = file.find(spec.name);
    ASSERT_NE(tensor, nullptr) << spec.name;
    EXPECT_EQ(tensor->spec.shape, spec.shape);
    EXPECT_EQ(tensor->spec.dtype, spec.dtype);
    EXPECT_EQ(tensor->offset % size_of(spec.dtype), 0) << "aligned";
    for (const std::byte byte : bytes_of(tensor->view)) {
      EXPECT_EQ(byte, static_cast<std::byte>(spec.name.size() % 2));
    }
  }
  EXPECT_EQ(file.find("absent"), nullptr);
  EXPECT_THROW(file.at("absent"), FormatError);
}

TEST_F(SafetensorsTest, WriterRefusesOtherTensors) {
  const std::vector<float> values = {1, 2, 3, 4};
  SafetensorsWriter writer(path_, {{"a", DType::kFloat32, {4}}});
  EXPECT_THROW(writer.write({values.data(), {2, 2}, DType::kFloat32}), ShapeError);
  EXPECT_THROW(writer.write({values.data(), {4}, DType::kInt32}), DtypeError);
  EXPECT_THROW(writer.commit(), InternalError);
  EXPECT_THROW(SafetensorsWriter(path_, {{"a", DType::kFloat32, {4}}, {"a", DType::kFloat32, {}}}),
               InternalError);
}

TEST_F(SafetensorsTest, AcceptsAnyOrderThatTiles) {
  const std::string header = R"({"b":{"data_offsets":[2,6],"dtype":"U8","shape":[4]},)"
                             R"("z":{"data_offsets":[2,2],"dtype":"F32","shape":[0]},)"
                             R"("a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}   )";
  const SafetensorsFile file = opened(with_size(header, "abcdef"));
  EXPECT_EQ(std::string(static_cast<const char*>(file.at("b").data), 4), "cdef");
  EXPECT_EQ(file.tensors()[0].spec.name, "a");
}

TEST_F(SafetensorsTest, RefusesBrokenSizes) {
  EXPECT_THAT(refusal(""), HasSubstr("0 bytes has no header"));
  EXPECT_THAT(refusal("1234567"), HasSubstr("has no header"));
  EXPECT_THAT(refusal(std::string(8, '\0')), HasSubstr("not an object"));
  EXPECT_THAT(refusal(std::string(8, '\xff')), HasSubstr("does not fit a file of 8"));
  EXPECT_THAT(refusal(std::string("\x03\0\0\0\0\0\0\0{}", 10)), HasSubstr("does not fit"));
  EXPECT_THAT(header_refusal("{}", 1), HasSubstr("1 bytes after the last tensor"));
  EXPECT_THAT(header_refusal(" {}", 0), HasSubstr("not an object"));
  EXPECT_EQ(header_refusal("{}  ", 0), "accepted");
}

TEST_F(SafetensorsTest, RefusesBrokenTilings) {
  const auto two = [&](const char* a, const char* b, size_t bytes) {
    return header_refusal(std::string(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)") + a +
                              R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}",
                          bytes);
  };
  EXPECT_EQ(two("[0,4]", "[4,8]", 8), "accepted");
  EXPECT_THAT(two("[0,4]", "[5,9]", 9), HasSubstr("a hole before tensor b"));
  EXPECT_THAT(two("[1,5]", "[5,9]", 9), HasSubstr("a hole before tensor a"));
  EXPECT_THAT(two("[0,4]", "[3,7]", 7), HasSubstr("an overlap before tensor b"));
  EXPECT_THAT(two("[0,4]", "[0,4]", 4), HasSubstr("an overlap"));
  EXPECT_THAT(two("[0,4]", "[4,8]", 9), HasSubstr("after the last tensor"));
  EXPECT_THAT(two("[0,4]", "[4,8]", 7), HasSubstr("outside the 7 bytes"));
  EXPECT_THAT(two("[0,4]", "[8,4]", 8), HasSubstr("outside"));
  EXPECT_THAT(two("[0,4]", "[4,7]", 7), HasSubstr("takes 4 bytes, but [4, 7) has 3"));
  EXPECT_THAT(two("[0,4]", "[4]", 8), HasSubstr("two data_offsets"));
  EXPECT_THAT(two("[0,4]", "[4,8,9]", 8), HasSubstr("two data_offsets"));
  EXPECT_THAT(two("[0,4]", "[-4,0]", 8), HasSubstr("-4 is not a value"));
  EXPECT_THAT(two("[0,4]", "[4.0,8]", 8), HasSubstr("4.0 is not a value"));
  EXPECT_THAT(two("[0,4]", "[4,18446744073709551616]", 8), HasSubstr("is not a value"));
}

TEST_F(SafetensorsTest, RefusesBrokenHeaders) {
  const auto one = [&](const std::string& entry) { return header_refusal("{" + entry + "}", 4); };
  const std::string good = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  EXPECT_EQ(one(good), "accepted");
  EXPECT_THAT(one(good + "," + good), HasSubstr("a occurs twice"));
  EXPECT_THAT(one(R"("__metadata__":{"x":"1","x":"2"},)" + good), HasSubstr("x occurs twice"));
  EXPECT_THAT(one(R"("__metadata__":{"x":1},)" + good), HasSubstr("1 is not a value of x"));
  EXPECT_THAT(one(R"("__metadata__":[],)" + good), HasSubstr("an array is not a value"));
  EXPECT_THAT(one(R"("a":{"dtype":"U8","shape":[4]})"), HasSubstr("needs dtype, shape"));
  EXPECT_THAT(one(R"("a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]})"),
              HasSubstr("states dtype twice"));
  EXPECT_THAT(one(R"("a":{"dtype":"U9","shape":[4],"data_offsets":[0,4]})"),
              HasSubstr("unknown dtype U9"));
  EXPECT_THAT(one(R"("a":{"dtype":8,"shape":[4],"data_offsets":[0,4]})"), HasSubstr("number 8"));
  EXPECT_THAT(one(R"("a":{"dtype":"U8","shape":[[4]],"data_offsets":[0,4]})"),
              HasSubstr("an array is not a value of shape"));
  EXPECT_THAT(one(R"("a":{"dtype":"U8","shape":null,"data_offsets":[0,4]})"), HasSubstr("null"));
  EXPECT_THAT(one(R"("a":{"dtype":"U8","shape":[1,1,1,1,1,1,4],"data_offsets":[0,4]})"),
              HasSubstr("more than 6"));
  EXPECT_THAT(one(R"("a":{"x":"U8","shape":[4],"data_offsets":[0,4]})"),
              HasSubstr("unknown field x"));
  EXPECT_THAT(one(R"("a":4)"), HasSubstr("number 4"));
  EXPECT_THAT(one(R"("a":"text")"), HasSubstr("a string is not a value of a"));
  EXPECT_THAT(one(good + ","), HasSubstr("not valid JSON"));
  EXPECT_THAT(one("\"\xff\":{}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(header_refusal("{}{}", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(one(R"("a":{"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]})"),
              HasSubstr("overflow"));
  EXPECT_THAT(one(R"("a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,4]})"),
              HasSubstr("overflow"));
  EXPECT_THAT(header_refusal("{" + std::string(1'000'000, '['), 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(header_refusal("{\"a\":" + std::string(1'000'000, '['), 0), HasSubstr("an array"));
}

TEST_F(SafetensorsTest, NamesTypesItDoesNotRead) {
  write_text_atomically(
      path_, with_size(R"({"w":{"dtype":"F8_E8M0","shape":[1],"data_offsets":[0,1]}})", "x"));
  EXPECT_THROW(SafetensorsFile{path_}, Unsupported);
}

TEST_F(SafetensorsTest, EveryTruncationIsRefused) {
  SafetensorsWriter writer(path_, {{"a", DType::kInt8, {3}}, {"b", DType::kInt8, {2, 2}}});
  writer.write({"abc", {3}, DType::kInt8});
  writer.write({"defg", {2, 2}, DType::kInt8});
  writer.commit();
  const std::string whole = read_text(path_);
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(refusal(whole.substr(0, size)), "accepted") << size;
  }
  EXPECT_NE(refusal(whole + "x"), "accepted");
}

// Random edits of a header either leave a well-formed file, whose bytes can all be read, or throw.
TEST_F(SafetensorsTest, SurvivesRandomEdits) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
      R"("b":{"dtype":"U8","shape":[],"data_offsets":[16,17]},)"
      R"("c":{"dtype":"BF16","shape":[0,3],"data_offsets":[17,17]}})";
  const std::string original = with_size(header, "0123456789abcdefg");
  const std::string alphabet = "{}[]\",:0123456789-+.eE\\uU8F32ab\x00\x7f\xff ";
  std::mt19937 random(20240601);
  const auto below = [&](size_t limit) { return static_cast<size_t>(random()) % limit; };
  int accepted = 0;
  for (int round = 0; round < 6000; ++round) {
    std::string bytes = original;
    for (size_t edits = 1 + below(4); edits > 0; --edits) {
      const size_t at = below(8 + header.size());
      const size_t length = std::min(1 + below(12), bytes.size() - at);
      switch (below(5)) {
        case 0:
          bytes[at] = alphabet[below(alphabet.size())];
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
          break;
        case 2:
          bytes.erase(at, length);
          break;
        case 3:
          bytes.insert(at, bytes.substr(below(bytes.size() - length), length));
          break;
        default:
          bytes.insert(at, 1, alphabet[below(alphabet.size())]);
      }
      if (bytes.size() < 16) bytes = original;
    }
    // Half of the cases keep an honest size, so that edits reach the checks behind it.
    if (below(2) == 0) {
      const uint64_t size = bytes.size() - 8 - std::min<size_t>(17, bytes.size() - 8);
      std::memcpy(bytes.data(), &size, sizeof(size));
    }
    try {
      const SafetensorsFile file = opened(bytes);
      int64_t total = 0;
      for (const SafetensorsFile::Entry& tensor : file.tensors()) {
        for (const std::byte byte : bytes_of(copy_of(tensor.view).view())) {
          total += static_cast<int64_t>(byte);
        }
      }
      accepted += total >= 0 ? 1 : 0;
    } catch (const FormatError&) {
    } catch (const Unsupported&) {
    }
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace megatron
