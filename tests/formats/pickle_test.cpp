#include "megatron/formats/pickle.h"

#include <gmock/gmock.h>

#include <string>

#include "megatron/formats/pickle_writer.h"
#include "tests/support/message_of.h"

namespace megatron {
namespace {

using testing::HasSubstr;

PyValue read(PyDocument& document, const std::string& text, const PickleOptions& options = {}) {
  return unpickle(std::as_bytes(std::span(text)), document, options).value;
}

std::string problem_of(const std::string& text) {
  return message_of<FormatError>([&] {
    PyDocument document;
    read(document, text);
  });
}

// A literal with its zero bytes.
template <size_t kSize>
std::string raw(const char (&text)[kSize]) {
  return {text, kSize - 1};
}

const std::string kProtocol2 = "\x80\x02";

TEST(PickleTest, ReadsWhatTheWriterWrites) {
  PickleWriter writer;
  writer.begin_dict();
  writer.text("numbers");
  writer.begin_list();
  for (const int64_t value : {int64_t{0}, int64_t{-1}, int64_t{255}, int64_t{256}, int64_t{-40000},
                              int64_t{1} << 31, -(int64_t{1} << 40), INT64_MAX, INT64_MIN}) {
    writer.integer(value);
  }
  writer.end_list();
  writer.text("args");
  writer.begin_namespace();
  writer.text("lr"), writer.number(1e-3);
  writer.text("bf16"), writer.boolean(true);
  writer.text("load"), writer.none();
  writer.text("params_dtype"), writer.dtype(DType::kBFloat16);
  writer.end_namespace();
  writer.text("betas");
  writer.begin_tuple();
  writer.number(0.9), writer.number(0.95);
  writer.end_tuple();
  writer.text("raw"), writer.bytes(raw("\x00\x7f\x80\xff"));
  writer.text("weight"), writer.tensor("7", 12, DType::kFloat16, 2, {2, 3});
  writer.end_dict();

  PyDocument document;
  const PyValue root = read(document, writer.finish());
  const auto numbers = root.find("numbers")->items();
  ASSERT_EQ(numbers.size(), 9u);
  EXPECT_EQ(numbers[1].integer(), -1);
  EXPECT_EQ(numbers[3].integer(), 256);
  EXPECT_EQ(numbers[4].integer(), -40000);
  EXPECT_EQ(numbers[5].integer(), int64_t{1} << 31);
  EXPECT_EQ(numbers[6].integer(), -(int64_t{1} << 40));
  EXPECT_EQ(numbers[7].integer(), INT64_MAX);
  EXPECT_EQ(numbers[8].integer(), INT64_MIN);
  const PyValue args = *root.find("args");
  ASSERT_NE(args.object(), nullptr);
  EXPECT_EQ(args.object()->type, "argparse.Namespace");
  EXPECT_EQ(args.find("lr")->number(), 1e-3);
  EXPECT_EQ(args.find("bf16")->boolean(), true);
  EXPECT_TRUE(args.find("load")->is_none());
  EXPECT_EQ(args.find("params_dtype")->dtype(), DType::kBFloat16);
  EXPECT_EQ(root.find("betas")->items()[1].number(), 0.95);
  EXPECT_EQ(root.find("raw")->bytes()->bytes, raw("\x00\x7f\x80\xff"));
  const PyTensor* tensor = root.find("weight")->tensor();
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->storage, "7");
  EXPECT_EQ(tensor->offset, 2);
  EXPECT_EQ(tensor->shape, (Shape{2, 3}));
  EXPECT_TRUE(tensor->is_contiguous());
}

// Pickles written by CPython 3.11.
TEST(PickleTest, ReadsPythonsOwn) {
  PyDocument document;
  // pickle.dumps({1: "a", "b": [1.5, True, None]}, protocol=4)
  const std::string text =
      raw("\x80\x04\x95\x1e\x00\x00\x00\x00\x00\x00\x00\x7d\x94\x28\x4b\x01\x8c\x01\x61\x94"
          "\x8c\x01\x62\x94\x5d\x94\x28\x47\x3f\xf8\x00\x00\x00\x00\x00\x00\x88\x4e\x65\x75"
          "\x2e");
  const PyValue root = read(document, text);
  EXPECT_EQ(root.entries()[0].first.integer(), 1);
  EXPECT_EQ(root.find("b")->items()[0].number(), 1.5);
  // An enumeration, by the function getattr and by its value.
  const PyValue by_name =
      read(document, kProtocol2 + "c__builtin__\ngetattr\n(cmegatron.core.enums\nModelType\n" +
                         raw("X\x07\x00\x00\x00"
                             "encoder"
                             "tR."));
  EXPECT_EQ(by_name.object()->type, "builtins.getattr");
  const PyValue by_value =
      read(document, kProtocol2 + "cmegatron.core.enums\nModelType\nK\x01\x85R.");
  EXPECT_EQ(by_value.object()->type, "megatron.core.enums.ModelType");
  // numpy's scalars, of versions 1 and 2.
  for (const char* module : {"numpy.core.multiarray", "numpy._core.multiarray"}) {
    const PyValue scalar = read(
        document, kProtocol2 + "c" + module + "\nscalar\n(cnumpy\ndtype\n(" +
                      raw("X\x02\x00\x00\x00i8\x89\x88tRC\x08\x2a") + std::string(7, '\0') + "tR.");
    EXPECT_EQ(scalar.integer(), 42);
  }
}

TEST(PickleTest, RefusesGlobalsThatNoCheckpointNeeds) {
  const std::string hostile = kProtocol2 + raw("cposix\nsystem\nX\x02\x00\x00\x00ls\x85R.");
  EXPECT_THAT(problem_of(hostile), HasSubstr("names posix.system, which no checkpoint needs"));
  PyDocument document;
  const PyValue value = read(document, hostile, {.keep_unexpected_globals = true});
  EXPECT_EQ(value.object()->type, "posix.system");  // an inert object
  EXPECT_THAT(problem_of(kProtocol2 + "cbuiltins\neval\n."), HasSubstr("builtins.eval"));
  EXPECT_THAT(problem_of(kProtocol2 + "c" + std::string(1000, 'a') + "\nb\n."),
              HasSubstr("too long"));
}

TEST(PickleTest, RefusesCyclesAndBombs) {
  EXPECT_THAT(problem_of(kProtocol2 + "]q\x01h\x01"
                                      "a."),
              HasSubstr("contains itself"));
  std::string deep = kProtocol2;
  for (int i = 0; i < 100000; ++i) deep += ']';
  for (int i = 1; i < 100000; ++i) deep += 'a';
  EXPECT_THAT(problem_of(deep + "."), HasSubstr("nest deeper than"));
  // Each list holds the one before twice: 2^60 values.
  std::string bomb = kProtocol2 + "]";
  for (int i = 0; i < 60; ++i) bomb += "2\x86";
  EXPECT_THAT(problem_of(bomb + "."), HasSubstr("far larger than the file"));
  // Copies of one long text.
  std::string copies = kProtocol2 + "(c_codecs\nencode\nq\x01" + raw("X\x00\x00\x10\x00") +
                       std::string(1 << 20, 'a') + raw("X\x06\x00\x00\x00latin1\x86q\x02R");
  for (int i = 0; i < 1000; ++i) copies += "h\x01h\x02R";
  EXPECT_THAT(problem_of(copies + "l."), HasSubstr("far larger than the file"));
}

TEST(PickleTest, RefusesMalformedOnes) {
  EXPECT_THAT(problem_of(""), HasSubstr("needs 1 more bytes, 0 are left"));
  EXPECT_THAT(problem_of(kProtocol2 + "."), HasSubstr("left over"));
  EXPECT_THAT(problem_of(kProtocol2 + "NN."), HasSubstr("left over"));
  EXPECT_THAT(problem_of(kProtocol2 + "0."), HasSubstr("missing on the stack"));
  EXPECT_THAT(problem_of(kProtocol2 + "t."), HasSubstr("no mark"));
  EXPECT_THAT(problem_of(kProtocol2 + "h\x05."), HasSubstr("memo 5 is not set"));
  EXPECT_THAT(problem_of(kProtocol2 + "Nr\xff\xff\xff\xff."), HasSubstr("beyond the limit"));
  EXPECT_THAT(problem_of(kProtocol2 + "X\xff\xff\xff\xff"
                                      "abc."),
              HasSubstr("4 are left"));
  EXPECT_THAT(problem_of(kProtocol2 + "NNa."), HasSubstr("appended to None"));
  EXPECT_THAT(problem_of(kProtocol2 + "N(NNu."), HasSubstr("are set in None"));
  EXPECT_THAT(problem_of(kProtocol2 + "N)R."), HasSubstr("is not a class or function"));
  EXPECT_THAT(problem_of(kProtocol2 + "NQ."), HasSubstr("not the id of a storage"));
  EXPECT_THAT(problem_of(kProtocol2 + "i."), HasSubstr("unknown operation 0x69"));
  EXPECT_THAT(problem_of("\x80\x07."), HasSubstr("newer than 5"));
}

TEST(PickleTest, RefusesTensorsBeyondTheirStorage) {
  struct Case {
    int64_t numel;
    int64_t offset;
    Shape shape;
  };
  for (const Case& c : {Case{5, 0, {2, 3}}, Case{6, 1, {2, 3}}, Case{6, INT64_MAX, {1}},
                        Case{6, 0, {INT64_MAX, 2}}, Case{6, -1, {1}}}) {
    PickleWriter writer;
    writer.tensor("0", c.numel, DType::kFloat32, c.offset, Shape{1});
    std::string text = writer.finish();
    // The shape [1] as the writer wrote it, replaced.
    PickleWriter shape;
    shape.begin_tuple();
    for (const int64_t extent : c.shape.dims()) shape.integer(extent);
    shape.end_tuple();
    shape.begin_tuple();
    for (int axis = 0; axis < c.shape.rank(); ++axis) {
      shape.integer(axis + 1 < c.shape.rank() ? c.shape[1] : 1);
    }
    shape.end_tuple();
    const std::string both = shape.finish();
    const std::string before = "(K\x01t(K\x01t";
    text.replace(text.find(before), before.size(), both.substr(2, both.size() - 3));
    EXPECT_THAT(problem_of(text), testing::AnyOf(HasSubstr("does not fit its storage"),
                                                 HasSubstr("offset of a tensor")))
        << c.shape.str();
  }
}

TEST(PickleTest, NoTruncationCrashes) {
  PickleWriter writer;
  writer.begin_dict();
  writer.text("a"), writer.tensor("0", 6, DType::kFloat32, 0, {2, 3});
  writer.text("b");
  writer.begin_namespace();
  writer.text("c"), writer.uint32_array({1, 2, 0xffffffff});
  writer.end_namespace();
  writer.end_dict();
  const std::string text = writer.finish();
  for (size_t size = 0; size < text.size(); ++size) {
    PyDocument document;
    EXPECT_THROW(read(document, text.substr(0, size)), FormatError) << size;
  }
}

}  // namespace
}  // namespace megatron
