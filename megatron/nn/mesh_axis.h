#pragma once

#include <cstdint>
#include <initializer_list>

namespace megatron {

// An axis of the mesh of ranks (parallel/mesh.h). Dense layers use the first three, experts the
// last three; both divide the ranks of an instance, and instances those of a pipeline stage.
enum class MeshAxis : uint8_t {
  kTensor,
  kContext,
  kData,
  kInstance,  // of the distributed optimizer: each has all of its state
  kPipeline,
  kExpertTensor,  // ranks that share each expert
  kExpert,        // ranks with different experts
  kExpertData,    // ranks with copies of the same experts
};
inline constexpr int kNumMeshAxes = 8;

// A set of axes.
class MeshAxes {
 public:
  constexpr MeshAxes() = default;
  constexpr MeshAxes(MeshAxis axis) : bits_(bit(axis)) {}  // NOLINT(google-explicit-constructor)
  constexpr MeshAxes(std::initializer_list<MeshAxis> axes) {
    for (const MeshAxis axis : axes) bits_ |= bit(axis);
  }

  constexpr bool contains(MeshAxis axis) const { return (bits_ & bit(axis)) != 0; }
  constexpr bool intersects(MeshAxes other) const { return (bits_ & other.bits_) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr MeshAxes in(MeshAxes other) const { return MeshAxes(bits_ & other.bits_); }
  constexpr MeshAxes with(MeshAxes other) const { return MeshAxes(bits_ | other.bits_); }
  constexpr MeshAxes without(MeshAxes other) const { return MeshAxes(bits_ & ~other.bits_); }
  constexpr bool operator==(const MeshAxes&) const = default;

 private:
  constexpr explicit MeshAxes(uint32_t bits) : bits_(bits) {}
  static constexpr uint32_t bit(MeshAxis axis) { return uint32_t{1} << static_cast<int>(axis); }

  uint32_t bits_ = 0;
};

// The axes that divide an instance for dense layers, and for experts.
inline constexpr MeshAxes kDenseAxes = {MeshAxis::kTensor, MeshAxis::kContext, MeshAxis::kData};
inline constexpr MeshAxes kExpertAxes = {MeshAxis::kExpertTensor, MeshAxis::kExpert,
                                         MeshAxis::kExpertData};
// The axes of ranks with the same weights of these layers, which see other samples or other parts
// of a sequence.
inline constexpr MeshAxes kDenseDataAxes = {MeshAxis::kContext, MeshAxis::kData,
                                            MeshAxis::kInstance};
inline constexpr MeshAxes kExpertDataAxes = {MeshAxis::kExpertData, MeshAxis::kInstance};
inline constexpr MeshAxes kDataAxes = kDenseDataAxes.with(kExpertDataAxes);

// The axes of ranks that all make the same updates of a parameter, of those along which its
// gradients are summed. With a divided optimizer its ranks along the others update shares.
constexpr MeshAxes update_axes(MeshAxes gradient_axes, bool divides_state) {
  return gradient_axes.in(divides_state ? MeshAxes(MeshAxis::kInstance) : kDataAxes);
}

}  // namespace megatron
