// SPDX-License-Identifier: Apache-2.0
/// Which modules become units. A unit is gathered, computed with, freed and reduced as one; one
/// transformer block per unit is the usual choice. What no unit claims becomes the root unit. Units
/// may nest: a parameter belongs to the innermost unit around it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace fsdp {

/// A module as a policy sees it. `module` is null for TorchScript modules and for a
/// TensorTree, which have names only.
struct Candidate {
  std::string name;  ///< path in the tree, "" for the outermost module
  const torch::nn::Module* module = nullptr;
  std::int64_t numel = 0;  ///< elements of its subtree that no unit inside it has claimed
};

/// Decides, module by module, what becomes a unit. Asked innermost modules first. One that fits no
/// module is a mistake: sharding throws kNotFound and lists the modules whose names come nearest.
///
/// *Thread safety*: a value. *Example*: `Options{.units = units_of<Block>()}`.
class Units {
 public:
  using Predicate = std::function<bool(const Candidate&)>;

  /// No units inside: the whole module is the root unit.
  Units() = default;
  /// `description` stands for the predicate in messages.
  explicit Units(Predicate claims, std::string description = "units that a predicate chooses")
      : claims_(std::move(claims)), description_(std::move(description)) {}

  const std::string& description() const { return description_; }
  /// Whether it was made without a predicate.
  bool is_default() const { return !claims_; }
  bool claims(const Candidate& candidate) const { return claims_ && claims_(candidate); }

  /// Names that must be found, else sharding throws kNotFound; filled by units_listed().
  std::vector<std::string> required_names;

 private:
  Predicate claims_;
  std::string description_ = "no unit";
};

namespace engine::detail {
template <class M, class = void>
struct ModuleType {
  using type = M;
};
template <class M>
struct ModuleType<M, std::void_t<typename M::ContainedType>> {
  using type = typename M::ContainedType;
};
/// "units of type torch::nn::LinearImpl".
std::string describe_type(const std::type_info& type);
}  // namespace engine::detail

/// Every module of type M (a holder such as `torch::nn::Linear` or its Impl) is a unit.
template <class M>
Units units_of() {
  using Impl = typename engine::detail::ModuleType<M>::type;
  return Units(
      [](const Candidate& candidate) {
        return candidate.module != nullptr &&
               dynamic_cast<const Impl*>(candidate.module) != nullptr;
      },
      engine::detail::describe_type(typeid(Impl)));
}

/// Every module whose whole path matches the regular expression (ECMAScript), as "h\\.\\d+".
Units units_matching(const std::string& pattern);

/// Exactly these module paths; the root is "". None: the same as Units(). Sharding throws kNotFound
/// for a path that does not exist.
Units units_listed(std::vector<std::string> names);

/// What no unit claims; for UnitRule::units.
Units root_unit();

/// Every module with at least `min_numel` parameter elements that no unit inside it has claimed.
Units units_larger_than(std::int64_t min_numel);

}  // namespace fsdp
