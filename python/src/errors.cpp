#include "bindings.h"

namespace megatron::python {

void check_signals() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// A later translator comes first: derived classes follow their bases.
void bind_errors(nb::module_& m) {
  const nb::exception<Error> base(m, "MegatronError");
  const nb::exception<ConfigError> config(m, "ConfigError", base);
  const nb::exception<ShapeError> shape(m, "ShapeError", base);
  const nb::exception<DtypeError> dtype(m, "DtypeError", base);
  const nb::exception<IoError> io(m, "IoError", base);
  const nb::exception<FormatError> format(m, "FormatError", base);
  const nb::exception<DeviceError> device(m, "DeviceError", base);
  const nb::exception<CommError> comm(m, "CommError", base);
  const nb::exception<Unsupported> unsupported(m, "Unsupported", base);
  const nb::exception<InternalError> internal(m, "InternalError", base);
  const nb::exception<ClosedError> closed(m, "ClosedError", base);
}

}  // namespace megatron::python
