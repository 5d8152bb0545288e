#include "megatron/model.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "model.h"

namespace megatron::python {
namespace {

nb::dict dict_of(const std::vector<api::NamedTensor>& tensors) {
  nb::dict all;
  for (const api::NamedTensor& one : tensors) all[one.name.c_str()] = nb::cast(one.tensor);
  return all;
}

std::vector<int32_t> ids_of(const nb::ndarray<const int32_t, nb::c_contig, nb::device::cpu>& ids) {
  return {ids.data(), ids.data() + ids.size()};
}

}  // namespace

PythonModel::PythonModel(const std::string& directory, const api::ModelOptions& options,
                         std::shared_ptr<RankWorld> world)
    : world_(std::move(world)) {
  const api::World place = world_ != nullptr ? world_->get() : api::World();
  model_.open([&] { return std::make_unique<api::Model>(directory, options, place); });
  if (world_ != nullptr) world_->add(*this);
}

PythonModel::~PythonModel() {
  if (world_ != nullptr) world_->remove(*this);
}

void PythonModel::close() {
  model_.close([this] {
    for (WorldUser* const engine : engines_) engine->close();
  });
}

void bind_model(nb::module_& m) {
  using M = PythonModel;
  using nb::arg;
  using ConstIds = nb::ndarray<const int32_t, nb::c_contig, nb::device::cpu>;
  nb::class_<M>(m, "Model")
      .def(
          "__init__",
          [](M* self, const std::string& directory, int64_t iteration, const std::string& device,
             int64_t threads, const std::string& weights, int64_t tp, int64_t pp,
             std::shared_ptr<RankWorld> world) {
            new (self) M(directory,
                         {.iteration = iteration,
                          .device = device,
                          .num_threads = threads,
                          .weights = weights,
                          .tensor_parallel_size = tp,
                          .pipeline_parallel_size = pp},
                         std::move(world));
          },
          arg("directory"), arg("iteration"), arg("device"), arg("num_threads"), arg("weights"),
          arg("tensor_parallel_size"), arg("pipeline_parallel_size"), arg("world").none())
      .def_prop_ro(
          "kind",
          [](M& m) {
            return std::string(name_of(m.call([](api::Model& one) { return one.kind(); })));
          })
      .def_prop_ro("vocab_size",
                   [](M& m) { return m.call([](api::Model& one) { return one.vocab_size(); }); })
      .def_prop_ro("max_positions",
                   [](M& m) { return m.call([](api::Model& one) { return one.max_positions(); }); })
      .def_prop_ro("end_tokens",
                   [](M& m) { return m.call([](api::Model& one) { return one.end_tokens(); }); })
      .def("parameters",
           [](M& m) { return dict_of(m.call([](api::Model& one) { return one.parameters(); })); })
      .def("gradients",
           [](M& m) { return dict_of(m.call([](api::Model& one) { return one.gradients(); })); })
      .def("clear_gradients", [](M& m) { m.call([](api::Model& one) { one.clear_gradients(); }); })
      .def(
          "save",
          [](M& m, const std::string& directory, bool is_native) {
            m.call([&](api::Model& one) {
              one.save(directory,
                       is_native ? api::ModelFormat::kNative : api::ModelFormat::kHuggingFace);
            });
          },
          arg("directory"), arg("is_native"))
      .def(
          "forward",
          [](M& m,
             const nb::ndarray<const int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>& ids) {
            const auto b = static_cast<int64_t>(ids.shape(0));
            const std::span<const int64_t> all(ids.data(), ids.size());
            return m.call([&](api::Model& one) { return one.forward(all, b); });
          },
          arg("ids"))
      .def(
          "backward",
          [](M& m, nb::handle gradient) {
            const api::Tensor given = tensor_of_array(gradient);
            m.call([&](api::Model& one) { one.backward(given); });
          },
          arg("gradient"))
      .def(
          "logits",
          [](M& m, const ConstIds& ids) {
            const std::vector<int32_t> all = ids_of(ids);
            return m.call([&](api::Model& one) { return one.logits(all); });
          },
          arg("ids"))
      .def(
          "log_probabilities",
          [](M& m, const ConstIds& ids) {
            const std::vector<int32_t> all = ids_of(ids);
            return m.call([&](api::Model& one) { return one.log_probabilities(all); });
          },
          arg("ids"))
      .def(
          "encode",
          [](M& m, const std::string& text) {
            return m.call([&](api::Model& one) { return one.encode(text); });
          },
          arg("text"))
      .def(
          "decode",
          [](M& m, const std::vector<int32_t>& ids) {
            return m.call([&](api::Model& one) { return one.decode(ids); });
          },
          arg("ids"))
      .def("close", &M::close);
}

}  // namespace megatron::python
