#include "megatron/formats/name_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/listed.h"
#include "megatron/formats/file_elements.h"
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

bool is_of_experts(Layout layout) {
  return layout == Layout::kExperts || layout == Layout::kExpertGateUp;
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

// Our tensor as rows of `row_elements` elements, and the plan over them.
struct RowPlan {
  std::vector<RowBlock> blocks;
  std::vector<int64_t> their_rows;  // by part
  int64_t row_elements = 1;
};

RowPlan plan_of(const TensorMapping& tensor, const LayoutSizes& sizes) {
  const Shape& shape = tensor.ours.shape;
  const auto refuse = [&](const std::string& rule) {
    throw ShapeError(
        fmt::format("{} has shape {}, but {}; does the configuration belong to these "
                    "weights?",
                    tensor.ours.name, shape.str(), rule));
  };
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

// Their tensor number `part` as a view into ours, if its rows are contiguous and in order there.
std::optional<ConstView> part_inside(const TensorMapping& tensor, size_t part, ConstView ours,
                                     const LayoutSizes& sizes) {
  if (is_transposed(tensor.layout)) return std::nullopt;
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
    std::optional<DType> dtype;
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
      if (!is_floating(found->dtype) || dtype.value_or(found->dtype) != found->dtype) {
        problems.push_back(fmt::format("dtype: {} is {}, expected {}", name, name_of(found->dtype),
                                       dtype ? name_of(*dtype) : "a floating-point type"));
      }
      dtype = found->dtype;
    }
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
    for (const NameRule& rule : table.rules) {
      const std::optional<std::string> layer = matched(rule.ours, spec.name);
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

std::vector<TensorPiece> pieces_of(const TensorMapping& tensor, std::vector<ElementReader> theirs,
                                   DType dtype, const LayoutSizes& sizes) {
  const Shape& shape = tensor.ours.shape;
  invariant(theirs.size() == tensor.theirs.size(), "all of their tensors are given");
  if (tensor.layout == Layout::kSame) return {{whole_region(shape), std::move(theirs[0])}};

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

Tensor to_theirs(const TensorMapping& tensor, size_t part, ConstView ours,
                 const LayoutSizes& sizes) {
  expect_shape(ours.shape, tensor.ours.shape, tensor.ours.name.c_str());
  const Shape shape = their_shapes(tensor, sizes)[part];
  const RowPlan plan = plan_of(tensor, sizes);
  const int64_t element = size_of(ours.dtype);
  const int64_t row = plan.row_elements * element;

  Tensor y(shape, ours.dtype, Stream{});
  auto* to = static_cast<std::byte*>(y.view().data);
  const auto* from = static_cast<const std::byte*>(ours.data);
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
  for (const auto& [name, tensor] : file.tensors()) {
    if (!used.contains(name) && !is_ignored(table, name)) {
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
    const DType dtype = file.find(tensor.theirs[0])->dtype;
    std::vector<ElementReader> theirs;
    for (const std::string& name : tensor.theirs) {
      theirs.push_back([shared, found = shared->find(name)] { return whole_elements(*found); });
    }
    section[tensor.ours.name] = {tensor.ours.shape, dtype,
                                 pieces_of(tensor, std::move(theirs), dtype, sizes)};
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
  std::map<std::string_view, Origin> origins;  // keys live in tensors
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<Shape> shapes = their_shapes(tensors[i], sizes);
    for (size_t part = 0; part < shapes.size(); ++part) {
      specs.push_back({tensors[i].theirs[part], tensors[i].ours.dtype, shapes[part]});
      origins.emplace(tensors[i].theirs[part], Origin{i, part});
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
