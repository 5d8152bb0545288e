#include <nanobind/stl/string_view.h>

#include "bindings.h"
#include "megatron/kernels/instruction_set.h"

NB_MODULE(_core, m) {
  using namespace megatron::python;
  m.doc() = "The engine of megatron.cpp.";
  bind_errors(m);
  megatron::kernels::expect_possible_instruction_set();
  m.def("instruction_set", &megatron::kernels::instruction_set,
        "That of the CPU kernels: docs/packages.md.");
  m.attr("built_with_cuda") = megatron::cuda::kIsBuilt;
  bind_tensor(m);
  bind_task(m);
  bind_data(m);
  bind_trainer(m);
  bind_model(m);
  bind_engine(m);
}
