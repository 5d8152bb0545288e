#include "megatron/formats/name_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/listed.h"
#include "megatron/formats/file_elements.h"
#include "megatron/formats/safetensors.h"
#include "megatron/formats/transpose.h"

namespace megatron {
namespace {

constexpr std::string_view kLayer = "{i}";

// The layer number if `name` matches `pattern`; "" for a pattern without a layer.
std::optional<std::string> matched(std::string_view pattern, std::string_view name) {
  const size_t hole = pattern.find(kLayer);
  if (hole == std::string_view::npos) {
    return pattern == name ? std::optional<std::string>("") : std::nullopt;
  }
  const std::string_view before = pattern.substr(0, hole);
  const std::string_view after = pattern.substr(hole + kLayer.size());
  if (name.size() <= before.size() + after.size() || !name.starts_with(before) ||
      !name.ends_with(after)) {
    return std::nullopt;
  }
  const std::string_view layer =
      name.substr(before.size(), name.size() - before.size() - after.size());
  const bool is_number = layer.find_first_not_of("0123456789") == std::string_view::npos;
  return is_number ? std::optional<std::string>(layer) : std::nullopt;
}

void fill_hole(std::string& name, std::string_view hole, const std::string& text) {
  const size_t at = name.find(hole);
  if (at != std::string::npos) name.replace(at, hole.size(), text);
}

// Their name; `layer` is the result of matched().
std::string with_layer(std::string_view pattern, const std::string& layer, int64_t num_layers) {
  std::string name(pattern);
  fill_hole(name, kLayer, layer);
  fill_hole(name, "{last}", std::to_string(num_layers - 1));
  if (!layer.empty()) fill_hole(name, "{i-1}", std::to_string(std::stoll(layer) - 1));
  return name;
}

// The name by which rules know one of our tensors.
std::string name_in_rules(const NameTable& table, const std::string& ours) {
  const auto& [begin, extra] = table.further_layers;
  const size_t hole = begin.find(kLayer);
  if (hole == std::string_view::npos || !ours.starts_with(begin.substr(0, hole))) return ours;
  const size_t end = ours.find('.', hole);
  const int64_t layer = std::stoll(ours.substr(hole, end - hole)) + table.num_layers;
  std::string_view rest = std::string_view(ours).substr(end + 1);
  if (rest.starts_with(extra)) rest.remove_prefix(extra.size());
  return fmt::format("decoder.layers.{}.{}", layer, rest);
}

bool is_of_experts(Layout layout) {
  return layout == Layout::kExperts || layout == Layout::kExpertGateUp;
}

// One tensor of all experts.
bool is_stacked(Layout layout) {
  return layout == Layout::kExpertColumns || layout == Layout::kExpertColumnPairs;
}

// The names of each expert: those of the first, then those of the second, ...
std::vector<std::string> of_each_expert(const std::vector<std::string>& names, int64_t experts) {
  std::vector<std::string> all;
  for (int64_t expert = 0; expert < experts; ++expert) {
    for (std::string name : names) {
      fill_hole(name, "{e}", std::to_string(expert));
      all.push_back(std::move(name));
    }
  }
  return all;
}

bool is_transposed(Layout layout) {
  return layout == Layout::kTranspose || layout == Layout::kQkvThirdsTranspose;
}

// Rows [theirs, theirs + rows) of their tensor `part` are our rows [ours, ours + rows).
struct RowBlock {
  size_t part;
  int64_t theirs;
  int64_t ours;
  int64_t rows;
};

// The locations of queries, keys and values: their tensor, and the first row in it.
struct QkvPlaces {
  std::array<size_t, 3> part;
  std::array<int64_t, 3> begin;
};

std::vector<RowBlock> qkv_blocks(const LayoutSizes& sizes, const QkvPlaces& places) {
  const int64_t d = sizes.kv_channels;
  const int64_t heads = sizes.num_attention_heads / sizes.num_query_groups;
  std::vector<RowBlock> blocks;
  for (int64_t group = 0; group < sizes.num_query_groups; ++group) {
    int64_t ours = group * (heads + 2) * d;
    for (size_t i = 0; i < 3; ++i) {
      const int64_t rows = i == 0 ? heads * d : d;
      blocks.push_back({places.part[i], places.begin[i] + group * rows, ours, rows});
      ours += rows;
    }
  }
  return blocks;
}

std::vector<RowBlock> kv_blocks(const LayoutSizes& sizes) {
  const int64_t d = sizes.kv_channels;
  std::vector<RowBlock> blocks;
  for (int64_t head = 0; head < sizes.num_attention_heads; ++head) {
    blocks.push_back({0, head * d, 2 * head * d, d});
    blocks.push_back({1, head * d, (2 * head + 1) * d, d});
  }
  return blocks;
}

// The plan of a layout: the mapping of rows, in both directions.
std::vector<RowBlock> row_blocks(Layout layout, int64_t our_rows, const LayoutSizes& sizes) {
  const int64_t queries = sizes.num_attention_heads * sizes.kv_channels;
  const int64_t keys = sizes.num_query_groups * sizes.kv_channels;
  switch (layout) {
    case Layout::kSame:
    case Layout::kTranspose:
      return {{0, 0, 0, our_rows}};
    case Layout::kPadVocab:
      return {{0, 0, 0, sizes.vocab_size}};
    case Layout::kQkvThirds:
    case Layout::kQkvThirdsTranspose:
      return qkv_blocks(sizes, {{0, 0, 0}, {0, queries, queries + keys}});
    case Layout::kQkvSplit:
      return qkv_blocks(sizes, {{0, 1, 2}, {0, 0, 0}});
    case Layout::kKvSplit:
      return kv_blocks(sizes);
    case Layout::kGateUp:
      return {{0, 0, 0, our_rows / 2}, {1, 0, our_rows / 2, our_rows / 2}};
    case Layout::kExperts:
    case Layout::kExpertGateUp:
      break;  // expert_blocks()
    case Layout::kExpertColumns:
    case Layout::kExpertColumnPairs:
      break;  // StackedExperts
  }
  throw InternalError("unknown layout");
}

// The rows of `parts` tensors of one expert after those of another.
std::vector<RowBlock> expert_blocks(size_t parts, int64_t our_rows) {
  const int64_t rows = our_rows / static_cast<int64_t>(parts);
  std::vector<RowBlock> blocks;
  for (size_t part = 0; part < parts; ++part) {
    blocks.push_back({part, 0, static_cast<int64_t>(part) * rows, rows});
  }
  return blocks;
}

[[noreturn]] void refuse_shape(const TensorSpec& ours, const std::string& rule) {
  throw ShapeError(
      fmt::format("{} has shape {}, but {}; does the configuration belong to these "
                  "weights?",
                  ours.name, ours.shape.str(), rule));
}

// Our tensor as rows of `row_elements` elements, and the plan over them.
struct RowPlan {
  std::vector<RowBlock> blocks;
  std::vector<int64_t> their_rows;  // by part
  int64_t row_elements = 1;
};

RowPlan plan_of(const TensorMapping& tensor, const LayoutSizes& sizes) {
  const Shape& shape = tensor.ours.shape;
  const auto refuse = [&](const std::string& rule) { refuse_shape(tensor.ours, rule); };
  if (tensor.layout == Layout::kSame) return {{{0, 0, 0, 1}}, {1}, shape.numel()};
  if (shape.rank() < 1) refuse("expected a tensor with rows");
  const bool is_vector = shape.rank() == 1;
  if (is_transposed(tensor.layout) && shape.rank() != 2 && !is_vector) {
    refuse("a transposed tensor must have two axes");
  }
  const bool has_experts = is_of_experts(tensor.layout);
  if (has_experts && shape.rank() != 3) refuse("expected [experts, rows, columns]");
  const int64_t our_rows = has_experts ? shape[0] * shape[1] : shape[0];
  RowPlan plan;
  plan.blocks = has_experts ? expert_blocks(tensor.theirs.size(), our_rows)
                            : row_blocks(tensor.layout, our_rows, sizes);
  plan.their_rows.resize(tensor.theirs.size(), 0);
  int64_t rows = 0;
  for (const RowBlock& block : plan.blocks) {
    invariant(block.part < plan.their_rows.size(), "a rule names every tensor of its layout");
    plan.their_rows[block.part] += block.rows;
    rows += block.rows;
  }
  if (tensor.layout == Layout::kPadVocab ? rows > our_rows : rows != our_rows) {
    refuse(fmt::format("expected {} rows", rows));
  }
  plan.row_elements = our_rows == 0 ? 0 : shape.numel() / our_rows;
  return plan;
}

void copy_rows(std::byte* y, const std::byte* x, int64_t bytes) {
  if (bytes > 0) std::memcpy(y, x, static_cast<size_t>(bytes));
}

// The maximum number of pieces of rows or columns that must be rearranged: enough for the ranks
// that share a layer, few enough that each piece is a long copy.
constexpr size_t kMaxPieces = 8;

// Ends of at most kMaxPieces ranges of [0, size), multiples of `unit`.
std::vector<int64_t> cuts(int64_t size, int64_t unit) {
  const int64_t units = size / std::max<int64_t>(unit, 1);
  const int64_t pieces = std::clamp<int64_t>(units, 1, static_cast<int64_t>(kMaxPieces));
  std::vector<int64_t> ends;
  for (int64_t i = 0; i < pieces; ++i) ends.push_back(units * i / pieces * unit);
  ends.push_back(size);
  return ends;
}

// Rows that stay together: a group of queries with its key and value, a key with its value, or a
// single row.
int64_t row_unit(const RowPlan& plan, Layout layout) {
  if (layout == Layout::kTranspose) return 1;
  const size_t blocks = layout == Layout::kKvSplit ? 2 : 3;
  int64_t rows = 0;
  for (size_t i = 0; i < std::min(plan.blocks.size(), blocks); ++i) rows += plan.blocks[i].rows;
  return rows;
}

// A block of rows that is contiguous in their tensor.
ElementReader rows_inside(const ElementReader& read, const RowBlock& block, int64_t row_elements) {
  return [read, block, row_elements] {
    FileElements elements = read();
    ConstView& view = elements.view;
    view.data = static_cast<const std::byte*>(view.data) +
                block.theirs * row_elements * size_of(view.dtype);
    view.shape = view.shape.with(0, block.rows);
    return elements;
  };
}

// A description of our tensor's assembly from theirs.
struct Assembly {
  RowPlan plan;
  std::vector<ElementReader> theirs;
  DType dtype;
  bool swaps;  // theirs are transposed
};

struct Rectangle {
  int64_t row;
  int64_t row_end;
  int64_t column;
  int64_t column_end;
};

Tensor assembled(const Assembly& assembly, const Rectangle& part, const Shape& shape) {
  const RowPlan& plan = assembly.plan;
  const int64_t element = size_of(assembly.dtype);
  const int64_t columns = part.column_end - part.column;
  std::vector<FileElements> elements;
  for (const ElementReader& read : assembly.theirs) elements.push_back(read());
  Tensor y(shape, assembly.dtype, Stream{});
  auto* to = static_cast<std::byte*>(y.view().data);
  for (const RowBlock& block : plan.blocks) {
    const int64_t begin = std::max(block.ours, part.row);
    const int64_t rows = std::min(block.ours + block.rows, part.row_end) - begin;
    if (rows <= 0) continue;
    const auto* from = static_cast<const std::byte*>(elements[block.part].view.data);
    const int64_t theirs = block.theirs + begin - block.ours;
    std::byte* target = to + (begin - part.row) * columns * element;
    if (assembly.swaps) {
      const int64_t stride = plan.their_rows[block.part];
      transpose({target, columns * element},
                {from + (part.column * stride + theirs) * element, stride * element}, columns, rows,
                element);
    } else {
      copy_rows(target, from + theirs * columns * element, rows * columns * element);
    }
  }
  return y;
}

// The matrices [rows, columns] of experts, or a bias of each as one column, and those of one tensor
// of all experts, which are transposed.
struct StackedExperts {
  bool has_pairs;
  int64_t rows = 0;
  int64_t columns = 1;
  Shape theirs = {};

  explicit StackedExperts(const TensorMapping& tensor)
      : has_pairs(tensor.layout == Layout::kExpertColumnPairs) {
    const Shape& shape = tensor.ours.shape;
    if (shape.rank() != 2 && shape.rank() != 3) {
      refuse_shape(tensor.ours, "expected [experts, rows, columns] or [experts, rows]");
    }
    rows = shape[1];
    if (shape.rank() == 3) columns = shape[2];
    if (has_pairs && rows % 2 != 0) refuse_shape(tensor.ours, "expected an even number of rows");
    theirs = shape.rank() == 3 ? Shape{shape[0], columns, rows} : shape;
  }

  // Our row of their row.
  int64_t our_row(int64_t row) const { return has_pairs ? row % 2 * (rows / 2) + row / 2 : row; }

  // The matrix of an expert from theirs.
  void to_ours(std::byte* y, const std::byte* x, int64_t element) const {
    const int64_t row_bytes = columns * element;
    std::vector<std::byte> turned(static_cast<size_t>(has_pairs ? rows * row_bytes : 0));
    std::byte* const in_order = has_pairs ? turned.data() : y;
    transpose({in_order, row_bytes}, {x, rows * element}, columns, rows, element);
    if (!has_pairs) return;
    for (int64_t row = 0; row < rows; ++row) {
      copy_rows(y + our_row(row) * row_bytes, in_order + row * row_bytes, row_bytes);
    }
  }

  void to_theirs(std::byte* y, const std::byte* x, int64_t element) const {
    const int64_t row_bytes = columns * element;
    std::vector<std::byte> in_order(static_cast<size_t>(rows * row_bytes));
    for (int64_t row = 0; row < rows; ++row) {
      copy_rows(in_order.data() + row * row_bytes, x + our_row(row) * row_bytes, row_bytes);
    }
    transpose({y, rows * element}, {in_order.data(), row_bytes}, rows, columns, element);
  }
};

// A piece for each expert.
std::vector<TensorPiece> expert_pieces(const TensorMapping& tensor, const StoredTensor& theirs) {
  const StackedExperts stack(tensor);
  std::vector<TensorPiece> pieces;
  const auto of_expert = [](const Shape& shape, int64_t expert) {
    Region region = whole_region(shape);
    region.offset[0] = expert;
    region.shape = shape.with(0, 1);
    return region;
  };
  for (int64_t expert = 0; expert < tensor.ours.shape[0]; ++expert) {
    const Region ours = of_expert(tensor.ours.shape, expert);
    pieces.push_back(
        {ours, [stack, theirs, source = of_expert(stack.theirs, expert), shape = ours.shape] {
           const FileElements elements = elements_of(theirs, source);
           Tensor y(shape, theirs.dtype, Stream{});
           stack.to_ours(static_cast<std::byte*>(y.view().data),
                         static_cast<const std::byte*>(elements.view.data), size_of(theirs.dtype));
           return FileElements{std::as_const(y).view(), y};
         }});
  }
  return pieces;
}

// Their tensor number `part` as a view into ours, if its rows are contiguous and in order there.
std::optional<ConstView> part_inside(const TensorMapping& tensor, size_t part, ConstView ours,
                                     const LayoutSizes& sizes) {
  if (is_transposed(tensor.layout) || is_stacked(tensor.layout)) return std::nullopt;
  const RowPlan plan = plan_of(tensor, sizes);
  const RowBlock* only = nullptr;
  for (const RowBlock& block : plan.blocks) {
    if (block.part != part) continue;
    if (only != nullptr) return std::nullopt;
    only = &block;
  }
  if (only == nullptr) return std::nullopt;
  const int64_t skipped = only->ours * plan.row_elements * size_of(ours.dtype);
  return ConstView{static_cast<const std::byte*>(ours.data) + skipped,
                   their_shapes(tensor, sizes)[part], ours.dtype};
}

// Finds the problems of their tensors for ours; fills `used` with the names that exist.
void find_problems(const ShardedWeights& file, const std::vector<TensorMapping>& tensors,
                   const LayoutSizes& sizes, std::set<std::string_view>& used,
                   std::vector<std::string>& problems) {
  for (const TensorMapping& tensor : tensors) {
    std::vector<Shape> shapes;
    try {
      shapes = their_shapes(tensor, sizes);
    } catch (const ShapeError& error) {
      problems.emplace_back(error.what());
    }
    for (size_t part = 0; part < tensor.theirs.size(); ++part) {
      const std::string& name = tensor.theirs[part];
      const StoredTensor* found = file.find(name);
      if (found == nullptr) {
        problems.push_back(fmt::format("missing: {} (for {})", name, tensor.ours.name));
        continue;
      }
      used.insert(name);
      if (!shapes.empty() && !(found->shape == shapes[part])) {
        problems.push_back(fmt::format("shape: {} is {}, expected {}", name, found->shape.str(),
                                       shapes[part].str()));
      }
      if (!is_floating(found->dtype) || found->dtype == DType::kFloat64) {
        problems.push_back(fmt::format("dtype: {} is {}, expected float32, float16 or bfloat16",
                                       name, name_of(found->dtype)));
      }
    }
  }
}

// The tensor of a file, also without the optional prefix.
const StoredTensor* find_copy(const ShardedWeights& file, const NameTable& table,
                              const TensorCopy& copy) {
  const StoredTensor* found = file.find(copy.theirs);
  if (found != nullptr || !copy.theirs.starts_with(table.optional_prefix)) return found;
  return file.find(copy.theirs.substr(table.optional_prefix.size()));
}

// Throws FormatError unless both have the same elements.
void expect_copy(const std::string& file, const StoredTensor& original, const std::string& name,
                 const StoredTensor& copy, const std::string& copy_name) {
  bool is_same = original.shape == copy.shape;
  for (int64_t row = 0; is_same && row < (copy.shape.rank() > 0 ? copy.shape[0] : 0);) {
    constexpr int64_t kBytes = int64_t{1} << 24;  // at a time
    const int64_t row_bytes = std::max<int64_t>(copy.shape.numel() / copy.shape[0] * 8, 1);
    Region rows = whole_region(copy.shape);
    rows.offset[0] = row;
    const int64_t count = std::clamp<int64_t>(kBytes / row_bytes, 1, copy.shape[0] - row);
    rows.shape = rows.shape.with(0, count);
    const Tensor a = cast(read_region(original, rows), DType::kFloat32);
    const Tensor b = cast(read_region(copy, rows), DType::kFloat32);
    is_same = std::ranges::equal(bytes_of(a.view()), bytes_of(b.view()));
    row += count;
  }
  if (is_same) return;
  throw FormatError(
      fmt::format("{}: {} is not the copy of {} that it has to be; remove it, or, if it is the "
                  "output layer, set "
                  "tie_word_embeddings of config.json to false",
                  file, copy_name, name));
}

void check_at_first_read(StoredTensor& tensor, std::function<void()> check) {
  const auto checked = std::make_shared<std::once_flag>();
  for (TensorPiece& piece : tensor.pieces) {
    piece.read = [checked, check, read = std::move(piece.read)] {
      std::call_once(*checked, check);
      return read();
    };
  }
}

bool is_ignored(const NameTable& table, std::string_view name) {
  for (const std::string_view pattern : table.ignored) {
    if (matched(pattern, name)) return true;
    if (pattern.starts_with(table.optional_prefix) &&
        matched(pattern.substr(table.optional_prefix.size()), name)) {
      return true;
    }
  }
  return false;
}

// Drops the optional prefix from `tensors` if no tensor of the file has it.
void adapt_prefix(const ShardedWeights& file, std::string_view prefix,
                  std::vector<TensorMapping>& tensors) {
  if (prefix.empty()) return;
  for (const auto& [name, tensor] : file.tensors()) {
    if (name.starts_with(prefix)) return;
  }
  for (TensorMapping& tensor : tensors) {
    for (std::string& name : tensor.theirs) {
      if (name.starts_with(prefix)) name.erase(0, prefix.size());
    }
  }
}

// Uses the older suffix for a name that the file lacks.
void adapt_ends(const ShardedWeights& file, const NameTable& table,
                std::vector<TensorMapping>& tensors) {
  for (TensorMapping& tensor : tensors) {
    for (std::string& name : tensor.theirs) {
      for (const auto& [now, before] : table.older_ends) {
        if (!name.ends_with(now) || file.find(name) != nullptr) continue;
        std::string older = name.substr(0, name.size() - now.size()) + std::string(before);
        if (file.find(older) != nullptr) name = std::move(older);
      }
    }
  }
}

}  // namespace

std::vector<TensorMapping> mapped(const NameTable& table, std::span<const TensorSpec> ours) {
  std::vector<TensorMapping> tensors;
  std::vector<std::string> unknown;
  for (const TensorSpec& spec : ours) {
    const size_t before = tensors.size();
    const std::string known_as = name_in_rules(table, spec.name);
    for (const NameRule& rule : table.rules) {
      const std::optional<std::string> layer = matched(rule.ours, known_as);
      if (!layer) continue;
      TensorMapping& tensor = tensors.emplace_back();
      tensor.ours = spec;
      tensor.layout = rule.layout;
      for (const std::string_view name : rule.theirs) {
        if (!name.empty()) {
          tensor.theirs.push_back(with_layer(name, *layer, table.num_layers));
        }
      }
      if (is_of_experts(rule.layout) && spec.shape.rank() > 0) {
        tensor.theirs = of_each_expert(tensor.theirs, spec.shape[0]);
      }
      break;
    }
    if (tensors.size() == before) unknown.push_back(spec.name);
  }
  if (!unknown.empty()) {
    throw Unsupported(
        fmt::format("the other format has no place for {}; the model has an option "
                    "that it does not know",
                    listed(unknown)));
  }
  return tensors;
}

std::vector<Shape> their_shapes(const TensorMapping& tensor, const LayoutSizes& sizes) {
  if (is_stacked(tensor.layout)) return {StackedExperts(tensor).theirs};
  const RowPlan plan = plan_of(tensor, sizes);
  const Shape& ours = tensor.ours.shape;
  if (tensor.layout == Layout::kSame) return {ours};
  std::vector<Shape> shapes;
  for (const int64_t rows : plan.their_rows) {
    if (is_of_experts(tensor.layout)) {
      shapes.push_back({rows, ours[2]});
      continue;
    }
    const bool swaps = is_transposed(tensor.layout) && ours.rank() == 2;
    shapes.push_back(swaps ? Shape{ours[1], rows} : ours.with(0, rows));
  }
  return shapes;
}

namespace {

// The pieces of our tensor; `theirs` read whole tensors.
std::vector<TensorPiece> pieces_of(const TensorMapping& tensor, std::vector<ElementReader> theirs,
                                   DType dtype, const LayoutSizes& sizes) {
  const Shape& shape = tensor.ours.shape;
  const RowPlan plan = plan_of(tensor, sizes);
  const bool swaps = is_transposed(tensor.layout) && shape.rank() == 2;
  std::vector<TensorPiece> pieces;
  if (is_of_experts(tensor.layout)) {
    for (const RowBlock& block : plan.blocks) {
      const Region region = {{block.ours / shape[1], block.ours % shape[1], 0},
                             {1, block.rows, shape[2]}};
      pieces.push_back({region, [read = theirs[block.part], part = region.shape] {
                          FileElements elements = read();
                          elements.view.shape = part;
                          return elements;
                        }});
    }
    return pieces;
  }
  if (!swaps && plan.blocks.size() <= kMaxPieces) {
    for (const RowBlock& block : plan.blocks) {
      pieces.push_back(
          {whole_region(shape), rows_inside(theirs[block.part], block, plan.row_elements)});
      pieces.back().region.offset[0] = block.ours;
      pieces.back().region.shape = shape.with(0, block.rows);
    }
    return pieces;
  }
  const auto assembly =
      std::make_shared<const Assembly>(Assembly{plan, std::move(theirs), dtype, swaps});
  // Only a transposed matrix is cut by columns; other layouts are cut by rows.
  const std::vector<int64_t> columns = tensor.layout == Layout::kTranspose && swaps
                                           ? cuts(plan.row_elements, 1)
                                           : std::vector<int64_t>{0, plan.row_elements};
  const std::vector<int64_t> rows = cuts(shape[0], row_unit(plan, tensor.layout));
  for (size_t r = 0; r + 1 < rows.size(); ++r) {
    for (size_t c = 0; c + 1 < columns.size(); ++c) {
      const Rectangle part{rows[r], rows[r + 1], columns[c], columns[c + 1]};
      Region region = whole_region(shape);
      region.offset[0] = part.row;
      region.shape = shape.with(0, part.row_end - part.row);
      if (shape.rank() == 2) {
        region.offset[1] = part.column;
        region.shape = region.shape.with(1, part.column_end - part.column);
      }
      pieces.push_back({region, [assembly, part, piece_shape = region.shape] {
                          const Tensor made = assembled(*assembly, part, piece_shape);
                          return FileElements{made.view(), made};
                        }});
    }
  }
  return pieces;
}

}  // namespace

StoredTensor from_theirs(const TensorMapping& tensor, std::vector<StoredTensor> theirs,
                         const LayoutSizes& sizes) {
  invariant(theirs.size() == tensor.theirs.size(), "all of their tensors are given");
  DType dtype = theirs[0].dtype;
  for (const StoredTensor& part : theirs) {
    if (part.dtype != dtype) dtype = DType::kFloat32;
  }
  for (StoredTensor& part : theirs) convert(part, dtype);
  StoredTensor ours{tensor.ours.shape, dtype, {}};
  if (tensor.layout == Layout::kSame) {
    ours.pieces = std::move(theirs[0].pieces);
  } else if (is_stacked(tensor.layout)) {
    ours.pieces = expert_pieces(tensor, theirs[0]);
  } else {
    std::vector<ElementReader> readers;
    for (StoredTensor& part : theirs) {
      readers.emplace_back([part = std::move(part)] { return whole_elements(part); });
    }
    ours.pieces = pieces_of(tensor, std::move(readers), dtype, sizes);
  }
  return ours;
}

Tensor to_theirs(const TensorMapping& tensor, size_t part, ConstView ours,
                 const LayoutSizes& sizes) {
  expect_shape(ours.shape, tensor.ours.shape, tensor.ours.name.c_str());
  const int64_t element = size_of(ours.dtype);
  Tensor y(their_shapes(tensor, sizes)[part], ours.dtype, Stream{});
  auto* to = static_cast<std::byte*>(y.view().data);
  const auto* from = static_cast<const std::byte*>(ours.data);
  if (is_stacked(tensor.layout)) {
    const StackedExperts stack(tensor);
    const int64_t bytes = stack.rows * stack.columns * element;
    for (int64_t expert = 0; expert < ours.shape[0]; ++expert) {
      stack.to_theirs(to + expert * bytes, from + expert * bytes, element);
    }
    return y;
  }
  const RowPlan plan = plan_of(tensor, sizes);
  const int64_t row = plan.row_elements * element;
  for (const RowBlock& block : plan.blocks) {
    if (block.part != part) continue;
    if (is_transposed(tensor.layout)) {
      transpose({to + block.theirs * element, plan.their_rows[part] * element},
                {from + block.ours * row, row}, block.rows, plan.row_elements, element);
    } else {
      copy_rows(to + block.theirs * row, from + block.ours * row, block.rows * row);
    }
  }
  return y;
}

StoredSection open_mapped(const std::shared_ptr<const ShardedWeights>& shared,
                          const NameTable& table, std::span<const TensorSpec> ours,
                          const LayoutSizes& sizes) {
  const ShardedWeights& file = *shared;
  std::vector<TensorMapping> tensors = mapped(table, ours);
  adapt_prefix(file, table.optional_prefix, tensors);
  adapt_ends(file, table, tensors);

  std::set<std::string_view> used;
  std::vector<std::string> problems;
  find_problems(file, tensors, sizes, used, problems);
  std::set<const StoredTensor*> copies;
  for (const TensorCopy& copy : table.copies) copies.insert(find_copy(file, table, copy));
  for (const auto& [name, tensor] : file.tensors()) {
    if (!used.contains(name) && !copies.contains(&tensor) && !is_ignored(table, name)) {
      problems.push_back(fmt::format("unexpected: {} {}", name, tensor.shape.str()));
    }
  }
  if (!problems.empty()) {
    throw FormatError(
        fmt::format("{}: {} of its tensors do not fit the model; is the "
                    "configuration that of these weights?\n  {}",
                    file.path().string(), problems.size(), listed(problems, "\n  ")));
  }
  StoredSection section;
  for (const TensorMapping& tensor : tensors) {
    std::vector<StoredTensor> theirs;
    for (const std::string& name : tensor.theirs) theirs.push_back(*file.find(name));
    StoredTensor& made = section[tensor.ours.name] = from_theirs(tensor, std::move(theirs), sizes);
    for (const TensorCopy& copy : table.copies) {
      const StoredTensor* found = find_copy(file, table, copy);
      if (copy.ours != tensor.ours.name || found == nullptr) continue;
      check_at_first_read(
          made, [shared, name = tensor.theirs[0], copy_name = copy.theirs, copy = found] {
            expect_copy(shared->path().string(), *shared->find(name), name, *copy, copy_name);
          });
    }
  }
  return section;
}

void save_mapped(const std::filesystem::path& directory, const NameTable& table,
                 std::span<const TensorSpec> ours, const LayoutSizes& sizes,
                 int64_t max_shard_bytes, const TensorSource& source, WeightsFormat format) {
  struct Origin {
    size_t tensor;
    size_t part;
  };
  const std::vector<TensorMapping> tensors = mapped(table, ours);
  std::vector<TensorSpec> specs;
  std::map<std::string_view, Origin> origins;  // keys live in tensors and in the table
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<Shape> shapes = their_shapes(tensors[i], sizes);
    for (size_t part = 0; part < shapes.size(); ++part) {
      specs.push_back({tensors[i].theirs[part], tensors[i].ours.dtype, shapes[part]});
      origins.emplace(tensors[i].theirs[part], Origin{i, part});
    }
    for (const TensorCopy& copy : table.copies) {
      if (!copy.is_written || copy.ours != tensors[i].ours.name) continue;
      specs.push_back({copy.theirs, tensors[i].ours.dtype, shapes[0]});
      origins.emplace(copy.theirs, Origin{i, 0});
    }
  }
  const TensorSource theirs = [&](const TensorSpec& spec) -> FileElements {
    const Origin origin = origins.at(spec.name);
    const TensorMapping& tensor = tensors[origin.tensor];
    FileElements elements = source(tensor.ours);
    if (const auto inside = part_inside(tensor, origin.part, elements.view, sizes)) {
      elements.view = *inside;
      return elements;
    }
    const Tensor made = to_theirs(tensor, origin.part, elements.view, sizes);
    return {made.view(), made};
  };
  write_sharded(directory, specs, max_shard_bytes, theirs, format);
}

}  // namespace megatron
