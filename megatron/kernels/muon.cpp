#include "megatron/kernels/muon.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void muon_momentum(TensorView direction, TensorView buffer, ConstView grad, double momentum,
                   bool is_nesterov, ConstView state, Stream stream) {
  expect_shape(buffer.shape, direction.shape, "muon_momentum: buffer");
  expect_shape(grad.shape, direction.shape, "muon_momentum: grad");
  expect_shape(state.shape, {kStepStateBytes}, "muon_momentum: state");
  return dispatch<cpu::muon_momentum, cuda::muon_momentum>("muon_momentum", direction, buffer, grad,
                                                           momentum, is_nesterov, state, stream);
}

void muon_normalize(TensorView y, ConstView x, ConstView measured, Stream stream) {
  expect_shape(x.shape, y.shape, "muon_normalize: x");
  expect_shape(measured.shape, {1, 2}, "muon_normalize: measured");
  return dispatch<cpu::muon_normalize, cuda::muon_normalize>("muon_normalize", y, x, measured,
                                                             stream);
}

void muon_update(TensorView model, TensorView main, ConstView direction, double lr,
                 double weight_decay, ConstView state, Stream stream) {
  if (!model.is_null()) expect_shape(model.shape, main.shape, "muon_update: model");
  expect_shape(direction.shape, main.shape, "muon_update: direction");
  expect_shape(state.shape, {kStepStateBytes}, "muon_update: state");
  return dispatch<cpu::muon_update, cuda::muon_update>("muon_update", model, main, direction, lr,
                                                       weight_decay, state, stream);
}

}  // namespace megatron::kernels
