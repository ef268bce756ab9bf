// SPDX-License-Identifier: Apache-2.0
/// Muon: momentum whose update is made orthogonal, matrix by matrix. That needs whole matrices, so
/// each has one rank that owns it: the ranks' parts come together there and go back as parts. All
/// other parameters go by AdamW.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/engine/shard_access.hpp"
#include "fsdp/optim/adamw.hpp"
#include "fsdp/optim/flat_optimizer.hpp"
#include "fsdp/optim/whole_tensors.hpp"

namespace fsdp::optim {

/// How an orthogonal update of a matrix with r rows and c columns is scaled.
enum class MuonScale {
  kShape,       ///< sqrt(max(1, r / c)), as in Jordan's code
  kMatchAdamW,  ///< 0.2 sqrt(max(r, c)): as large as AdamW's updates, so that its rate and decay
                ///< serve as well (Liu et al., "Muon is Scalable for LLM Training", 2025)
};

/// Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024.
struct MuonOptions {
  double lr = 0.02;
  double momentum = 0.95;
  bool nesterov = true;
  double weight_decay = 0;  ///< decoupled
  int iterations = 5;       ///< of Newton and Schulz
  MuonScale scale = MuonScale::kShape;
  /// Type of the parts that travel and of the iteration, kBFloat16 for half the bytes. Undefined:
  /// double where a parameter is, else float.
  at::ScalarType dtype = at::ScalarType::Undefined;
  /// Matrices are gathered together as long as they fit into this many bytes.
  std::int64_t batch_bytes = std::int64_t{64} << 20;
};

/// Makes a 2-D matrix nearly orthogonal (singular values between about 0.7 and 1.2) by
/// `iterations` steps of a polynomial of fifth degree, in place and in its own type. `workspace`
/// has newton_schulz_numel() elements of that type.
void newton_schulz_(at::Tensor matrix, int iterations, const at::Tensor& workspace);
std::int64_t newton_schulz_numel(const std::vector<std::int64_t>& sizes);

/// *Invariants*, *Thread safety*: those of FlatOptimizer. *Example*:
///
///     fsdp::optim::Muon optimizer(sharded, {.lr = 0.02, .weight_decay = 0.01},
///                                 /*by_adamw=*/{"embedding.*", "head.*"}, {.lr = 3e-4});
class Muon : public FlatOptimizer {
 public:
  /// Parameters with two dimensions are matrices, except for those that fit a pattern of
  /// `by_adamw`: name embeddings and the head there, whose rows stand for themselves. Group 0 is
  /// Muon's, group 1 AdamW's.
  /// @collective all ranks @memory one momentum for matrices and two moments for the rest; as
  /// staging what WholeTensors needs, and two matrices and two squares of the largest owned one
  /// @throws Error kInvalidArgument for numbers out of their range; kNotFound for a pattern that
  /// fits no parameter
  Muon(Sharded sharded, MuonOptions options, std::vector<std::string> by_adamw = {},
       AdamWOptions others = {});

  /// Two collectives per batch of matrices. @collective all ranks @blocks
  void step() override;

  /// To change between steps; dtype and batch_bytes stay what they were.
  MuonOptions& options() { return options_; }
  AdamWOptions& adamw_options() { return others_; }
  /// Names of the matrices, and where they go.
  const std::vector<std::string>& matrices() const { return matrices_; }
  const WholeTensors& whole_matrices() const { return *whole_; }

  std::map<std::string, double> values(int group) const override;
  void visit_values(
      int group, const std::function<void(const char* name, double value)>& visit) const override;
  void set_values(int group, const std::map<std::string, double>& values) override;

 private:
  struct Parts;  ///< which parameters go by which rule
  Muon(Sharded sharded, MuonOptions options, Parts parts, AdamWOptions others);
  static Parts parts_of(const Sharded& sharded, const std::vector<std::string>& by_adamw);
  void update(const Run& run) override;
  void update_matrices();

  MuonOptions options_;
  AdamWOptions others_;
  std::vector<std::string> matrices_;
  std::vector<std::size_t> places_;  ///< of the matrices in parameters()
  std::unique_ptr<WholeTensors> whole_;
  at::Tensor workspace_;
  HeldMemory workspace_memory_;
};

}  // namespace fsdp::optim
