// SPDX-License-Identifier: Apache-2.0
/// Touching against a second witness: RecordFunction, which sees every operator of the process and
/// not only those that carry the touch key. Whatever weight it sees must be readable by then, or be
/// about to be gathered by the touch fallback.
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <gmock/gmock.h>

#include <mutex>
#include <set>

#include "engine/touch/touch.hpp"
#include "parity/touch_support.hpp"

namespace fsdp::test {
namespace {

/// What the callback, a plain function, reports to. One test at a time uses it.
struct Oracle {
  const Sharded* sharded = nullptr;
  std::mutex mutex;
  std::set<std::string> missed;
  int weights_seen = 0;

  static Oracle& instance() {
    static Oracle oracle;
    return oracle;
  }

  void look(const at::Tensor& tensor, const at::RecordFunction& op) {
    if (!tensor.defined() || !tensor.has_storage() || !sharded->is_sharded(tensor)) {
      return;
    }
    ++weights_seen;
    const bool fallback_follows = tensor.key_set().has(engine::kTouchKey) &&
                                  !c10::impl::tls_is_dispatch_key_excluded(engine::kTouchKey);
    const bool is_readable =
        tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() != nullptr;
    if (!fallback_follows && !is_readable && !is_view(op)) {
      missed.insert(op.name());
    }
  }

  /// A view needs no data: its schema returns an alias of an argument that it does not write.
  static bool is_view(const at::RecordFunction& op) {
    const auto schema = op.operator_schema();
    if (!schema.has_value()) {
      return false;
    }
    const auto& returns = schema->returns();
    const bool is_alias = !returns.empty() && returns[0].alias_info() != nullptr &&
                          !returns[0].alias_info()->isWrite();
    static const std::set<std::string> kQuestions = {"aten::size",       "aten::is_leaf",
                                                     "aten::output_nr",  "aten::_version",
                                                     "aten::is_complex", "aten::numpy_T"};
    return is_alias || kQuestions.contains(schema->name());
  }
};

std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& op) {
  Oracle& oracle = Oracle::instance();
  std::lock_guard lock(oracle.mutex);
  if (oracle.sharded != nullptr) {
    for (const c10::IValue& input : op.inputs()) {
      if (input.isTensor()) {
        oracle.look(input.toTensor(), op);
      } else if (input.isTensorList()) {
        for (const at::Tensor& tensor : input.toTensorVector()) {
          oracle.look(tensor, op);
        }
      }
    }
  }
  return nullptr;
}

/// Trains `module` with every parameter a unit and looks at every operator.
template <class M, class F>
void expect_all_touched(const std::shared_ptr<M>& module, F forward, int units_at_once = 2) {
#ifndef NDEBUG
  GTEST_SKIP() << "RecordFunction::inputs() throws in a build without NDEBUG against the wheel";
#endif
  module->to(torch::kDouble);
  run_threads(1, [&](const World& world) {
    const Sharded sharded = shard_each(*module, world, units_at_once);
    Oracle& oracle = Oracle::instance();
    oracle.missed.clear();
    oracle.weights_seen = 0;
    oracle.sharded = &sharded;
    const auto handle =
        at::addThreadLocalCallback(at::RecordFunctionCallback(on_operator).needsInputs(true));
    for (int step = 0; step < 3; ++step) {
      loss_of(forward(*module)).backward();
    }
    {
      torch::NoGradGuard no_grad;
      forward(*module);
    }
    at::removeCallback(handle);
    oracle.sharded = nullptr;
    EXPECT_GT(oracle.weights_seen, 10);
    EXPECT_THAT(oracle.missed, testing::IsEmpty());
  });
}

TEST(TouchOracle, Linear) {
  const at::Tensor x = random({3, 4});
  expect_all_touched(two_layers(), [x](TwoLayersImpl& of) { return of.forward(x); });
}

TEST(TouchOracle, TransformerEncoderLayer) {
  const at::Tensor x = random({5, 2, 8});
  torch::nn::TransformerEncoderLayer layer(
      torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12));
  expect_all_touched(layer.ptr(),
                     [x](torch::nn::TransformerEncoderLayerImpl& of) { return of.forward(x); });
}

TEST(TouchOracle, Lstm) {
  const at::Tensor x = random({5, 2, 3});
  torch::nn::LSTM layer(torch::nn::LSTMOptions(3, 4).num_layers(2));
  expect_all_touched(
      layer.ptr(), [x](torch::nn::LSTMImpl& of) { return std::get<0>(of.forward(x)); }, 8);
}

TEST(TouchOracle, Convolutions) {
  const at::Tensor x = random({2, 3, 6, 6});
  torch::nn::Sequential model(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4),
                              torch::nn::ConvTranspose2d(4, 2, 3), torch::nn::GroupNorm(2, 2));
  expect_all_touched(model.ptr(), [x](torch::nn::SequentialImpl& of) { return of.forward(x); });
}

TEST(TouchOracle, Embedding) {
  const at::Tensor x = random_indices(7, {2, 3});
  expect_all_touched(torch::nn::Embedding(7, 4).ptr(), [x](torch::nn::EmbeddingImpl& of) {
    return at::matmul(of.forward(x), of.weight.t());
  });
}

}  // namespace
}  // namespace fsdp::test
