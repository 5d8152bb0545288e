#include "annex/corpus/url.h"

#include <gmock/gmock.h>

#include "annex/corpus/url_filter.h"
#include "megatron/core/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron::corpus {
namespace {

using testing::HasSubstr;

TEST(SuffixList, TheLongestRuleGivesTheName) {
  const SuffixList list(
      "// comment\nco.uk\n*.ck\n!www.ck\n\ncom\n// ===BEGIN PRIVATE DOMAINS===\nblogspot.com\n");
  EXPECT_EQ(list.name_of("news.example.co.uk"), "example");
  EXPECT_EQ(list.name_of("example.com"), "example");
  EXPECT_EQ(list.name_of("me.blogspot.com"), "blogspot");
  EXPECT_EQ(list.name_of("a.b.example.org"), "example");  // no rule: one label
  EXPECT_EQ(list.name_of("a.shop.ck"), "a");
  EXPECT_EQ(list.name_of("www.ck"), "www");
  EXPECT_EQ(list.name_of("x.www.ck"), "www");
  EXPECT_EQ(list.name_of("co.uk"), "");
  EXPECT_EQ(list.name_of("localhost"), "");
  EXPECT_EQ(list.name_of(""), "");
  EXPECT_EQ(list.name_of("10.0.0.1"), "10.0.0.1");
}

TEST(HostOf, LeavesOutAllElse) {
  EXPECT_EQ(host_of("HTTP://user:pass@News.Example.com.:80/a@b?c"), "news.example.com");
  EXPECT_EQ(host_of("example.com/path"), "example.com");
  EXPECT_EQ(host_of("example.com?u=http://other.org"), "example.com");
  EXPECT_EQ(host_of(""), "");
}

TEST(IsWellFormed, KnowsHostsPortsAndPaths) {
  for (const char* const good :
       {"http://example.com", "https://example.com/", "HTTPS://WWW.EXAMPLE.COM/a?b=c#d",
        "http://example.com:8080/x", "http://example.com?x", "http://127.0.0.1/x",
        "http://a-b.example.museum", "http://xn--bcher-kva.example.", "http://e.xn--p1ai/"}) {
    EXPECT_TRUE(is_well_formed(good)) << good;
  }
  for (const char* const bad :
       {"example.com", "ftp://example.com", "http://", "http:///a", "http://example",
        "http://-a.com", "http://a-.com", "http://a..com", "http://a.b", "http://exam ple.com",
        "http://example.com/a b", "http://example.com:/", "http://example.com:x/",
        "http://user@example.com/", "http://under_score.com", "http://1.2.3.4.5",
        "http://example.com?"}) {
    EXPECT_FALSE(is_well_formed(bad)) << bad;
  }
  EXPECT_TRUE(is_well_formed("http://" + std::string(63, 'a') + ".com"));
  EXPECT_FALSE(is_well_formed("http://" + std::string(64, 'a') + ".com"));
}

TEST(FilterUrls, CountsTheFirstReason) {
  const TemporaryDirectory folder;
  folder.write("b.txt",
               "http://example.com/page\n  http://last.example.org/x \n"
               "http://www.example.com/a.PDF?page=1\nhttp://a.b\nhttp:// bad.example.com\n\n"
               "http://example.com/page\n");
  folder.write("a.txt",
               "http://m.YouTube.com/watch.mp4\nhttps://first.example.co.uk/?a.zip\n"
               "http://example.com/file.7z\n");
  folder.write("c.other", "http://unread.example.com/\n");
  const std::filesystem::path output = folder.path() / "out.txt";
  const UrlCounts counts = filter_urls({.input = folder.path(), .output = output}, {.threads = 2});
  EXPECT_EQ(read_text(output),
            "https://first.example.co.uk/?a.zip\nhttp://example.com/page\n"
            "http://last.example.org/x\n");
  EXPECT_EQ(counts.urls, 10);
  EXPECT_EQ(counts.bad_domains, 1);
  EXPECT_EQ(counts.bad_extensions, 2);
  EXPECT_EQ(counts.short_urls, 1);
  EXPECT_EQ(counts.malformed, 2);
  EXPECT_EQ(counts.duplicates, 1);
  EXPECT_EQ(counts.written, 3);
  // The output lies in the folder; a second run does not read it.
  EXPECT_EQ(filter_urls({.input = folder.path(), .output = output}, {}).urls, 10);
}

TEST(FilterUrls, TakesOtherLists) {
  const TemporaryDirectory folder;
  folder.write("a.txt", "http://a.foo.bar/1\nhttp://b.foo.bar/2\nhttp://youtube.com/x.pdf\n");
  const UrlCounts counts = filter_urls({.input = folder.path(),
                                        .output = folder.path() / "out",
                                        .domain_list = folder.write("d", "# names\nA\n"),
                                        .extension_list = folder.write("e", ".zip\n"),
                                        .suffix_list = folder.write("s", "foo.bar\n")},
                                       {});
  EXPECT_EQ(counts.bad_domains, 1);
  EXPECT_EQ(counts.written, 2);
  EXPECT_THAT(message_of<ConfigError>([&] {
                std::filesystem::create_directory(folder.path() / "empty");
                filter_urls({.input = folder.path() / "empty", .output = folder.path() / "o"}, {});
              }),
              HasSubstr("the folder has no file *.txt"));
}

}  // namespace
}  // namespace megatron::corpus
