#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// The tensors of a microbatch: a struct of the task, whose tensors() lists them in a fixed order.
//
//   struct TinyMicrobatch {
//     RowIds tokens;
//     Tensor loss_mask;
//     std::vector<Tensor*> tensors() { return {&tokens.ids, &tokens.order, &loss_mask}; }
//   };
//
// Unused tensors are undefined. All numbers of a microbatch are in its tensors, so that equal
// shapes mean equal work.
class Microbatch {
 public:
  // For a chunk that reads no data.
  Microbatch() = default;
  // Implicit, because a task returns its struct.
  template <class Fields>
  Microbatch(Fields fields) requires requires {  // NOLINT(google-explicit-constructor)
    fields.tensors();
  } : held_(std::make_unique<HeldFields<Fields>>(std::move(fields))) {
  }

  // The struct, whose tensors share memory with the microbatch; a default one if it is empty.
  // Throws InternalError if it has another type.
  template <class Fields>
  Fields as() const {
    if (held_ == nullptr) return {};
    const auto* held = dynamic_cast<const HeldFields<Fields>*>(held_.get());
    invariant(held != nullptr, "a task reads the type of microbatch that it makes");
    return held->fields;
  }

  // The struct's tensors; none if it is empty.
  std::vector<Tensor*> tensors() const {
    return held_ == nullptr ? std::vector<Tensor*>() : held_->tensors();
  }

  // A microbatch of the same type with map(x) for each defined tensor x.
  template <class Map>
  Microbatch mapped(const Map& map) const {
    Microbatch made;
    if (held_ != nullptr) made.held_ = held_->clone();
    for (Tensor* tensor : made.tensors()) {
      if (tensor->defined()) *tensor = map(std::as_const(*tensor));
    }
    return made;
  }
  Microbatch to(Stream stream) const {
    return mapped([&](const Tensor& tensor) { return tensor.to(stream); });
  }

 private:
  struct Held {
    virtual ~Held() = default;
    virtual std::unique_ptr<Held> clone() const = 0;
    virtual std::vector<Tensor*> tensors() = 0;
  };
  template <class Fields>
  struct HeldFields final : Held {
    explicit HeldFields(Fields the_fields) : fields(std::move(the_fields)) {}
    std::unique_ptr<Held> clone() const override { return std::make_unique<HeldFields>(fields); }
    std::vector<Tensor*> tensors() override { return fields.tensors(); }
    Fields fields;
  };

  std::unique_ptr<Held> held_;
};

}  // namespace megatron
