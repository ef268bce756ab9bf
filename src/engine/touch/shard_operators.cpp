// SPDX-License-Identifier: Apache-2.0
#include "engine/touch/shard_operators.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace fsdp::engine {
namespace {

using namespace std::string_view_literals;

// By what they are, then alphabetically; composite operators come by their own names.
constexpr std::array kMixing = {
    // norms and distances
    "_foreach_norm"sv, "_foreach_powsum"sv, "_linalg_svd"sv, "cdist"sv, "cosine_similarity"sv,
    "dist"sv, "frobenius_norm"sv, "linalg_matrix_norm"sv, "linalg_norm"sv, "linalg_svd"sv,
    "linalg_svdvals"sv, "linalg_vector_norm"sv, "mse_loss"sv, "norm"sv, "norm_except_dim"sv,
    "nuclear_norm"sv, "renorm"sv, "svd"sv,
    // products
    "addbmm"sv, "addmm"sv, "addmv"sv, "addr"sv, "baddbmm"sv, "bmm"sv, "chain_matmul"sv, "dot"sv,
    "einsum"sv, "ger"sv, "inner"sv, "kron"sv, "linalg_multi_dot"sv, "linalg_vecdot"sv, "linear"sv,
    "matmul"sv, "mm"sv, "mv"sv, "outer"sv, "tensordot"sv, "vdot"sv,
    // sums and extremes
    "_amp_foreach_non_finite_check_and_unscale_"sv, "_foreach_max"sv, "all"sv, "amax"sv, "amin"sv,
    "aminmax"sv, "any"sv, "argmax"sv, "argmin"sv, "count_nonzero"sv, "cummax"sv, "cummin"sv,
    "cumprod"sv, "cumsum"sv, "logcumsumexp"sv, "logsumexp"sv, "max"sv, "mean"sv, "min"sv,
    "nanmean"sv, "nansum"sv, "prod"sv, "sum"sv, "trace"sv,
    // orders and statistics
    "argsort"sv, "histc"sv, "kthvalue"sv, "log_softmax"sv, "median"sv, "mode"sv, "msort"sv,
    "nanmedian"sv, "nanquantile"sv, "quantile"sv, "softmax"sv, "sort"sv, "std"sv, "std_mean"sv,
    "topk"sv, "var"sv, "var_mean"sv,
    // flattened into one vector, as LBFGS does before its dot products
    "cat"sv, "concat"sv, "concatenate"sv, "hstack"sv, "stack"sv, "vstack"sv};

constexpr std::array kFirstHalves = {"_to_copy"sv, "abs"sv, "pow"sv, "square"sv, "to"sv};

template <class Names>
bool is_in(const Names& names, const c10::FunctionSchema& schema) {
  std::string_view name = schema.name();
  constexpr std::string_view kNamespace = "aten::";
  if (!name.starts_with(kNamespace)) {
    return false;
  }
  name.remove_prefix(kNamespace.size());
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

bool mixes_elements(const c10::FunctionSchema& schema) {
  // max(a, b) and min(a, b) go by elements.
  const bool is_binary =
      std::any_of(schema.arguments().begin(), schema.arguments().end(),
                  [](const c10::Argument& argument) { return argument.name() == "other"; });
  const bool is_extreme = schema.name() == "aten::max" || schema.name() == "aten::min";
  return is_in(kMixing, schema) && !(is_extreme && is_binary);
}

bool is_first_half_of_a_norm(const c10::FunctionSchema& schema) {
  return is_in(kFirstHalves, schema);
}

}  // namespace fsdp::engine
