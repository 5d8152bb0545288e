#include "bindings.h"

NB_MODULE(_core, m) {
  using namespace megatron::python;
  m.doc() = "The engine of megatron.cpp.";
  bind_errors(m);
  bind_tensor(m);
  bind_task(m);
  bind_data(m);
  bind_trainer(m);
  bind_model(m);
  bind_engine(m);
}
