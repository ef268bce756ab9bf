// SPDX-License-Identifier: Apache-2.0
/// Everything that decides a training run, as values, and the check that it can run at all. Free of
/// LibTorch, so that the command line refuses bad input before any rank starts.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/data/samples.hpp"
#include "fsdp/engine/gradients.hpp"
#include "fsdp/engine/strategy.hpp"
#include "fsdp/format/peft.hpp"
#include "fsdp/models/model_config.hpp"

namespace fsdp::train {

/// The words of --optimizer and --dtype.
enum class OptimizerKind { kAdamW, kSgd, kLion, kMuon };
enum class WeightType { kFloat32, kFloat64 };

/// "adamw", "sgd", "lion" or "muon".
const char* to_string(OptimizerKind kind);
/// The reverse. @throws Error kInvalidArgument for another word
OptimizerKind parse_optimizer(const std::string& word);
/// "float32" or "float64".
const char* to_string(WeightType type);

/// The types that saved weights may have: "float32", "float64", "bfloat16", "float16".
enum class SavedType { kFloat32, kFloat64, kBFloat16, kFloat16 };
const char* to_string(SavedType type);
/// The reverse; also "bf16" and "fp16". @throws Error kInvalidArgument for another word
SavedType parse_saved_type(const std::string& word);
std::int64_t bytes_of(SavedType type);

/// What weights are gathered as and gradients sent in; the optimizer's weights keep their own type.
enum class TravelType { kAsWeights, kBFloat16, kFloat16 };
/// From "weights", "bfloat16", "float16". @throws Error kInvalidArgument
TravelType parse_travel_type(const std::string& word);
/// From "full-shard", "shard-grad", "replicate", "hybrid", "hybrid-optimizer", "secondary-shard".
/// @throws Error kInvalidArgument
Strategy parse_strategy(const std::string& word);
/// From "3:5", both included, or "4". @throws Error kInvalidArgument
std::pair<std::int64_t, std::int64_t> parse_steps(const std::string& word);
/// From "none", "replicas", "all": which reductions wait for the last micro-step.
/// @throws Error kInvalidArgument
GradientSync parse_deferral(const std::string& word);

/// The words of --schedule, see Schedule.
enum class ScheduleKind { kCosine, kLinear, kConstant, kWsd };
/// "cosine", "linear", "constant" or "wsd".
const char* to_string(ScheduleKind kind);
/// The reverse. @throws Error kInvalidArgument for another word
ScheduleKind parse_schedule(const std::string& word);

/// Something to learn from: texts or token files, one behind the other, or a sample file.
struct DataSource {
  std::vector<std::string> paths;  ///< as data::Corpus::open() takes them; of samples, one
  bool is_samples = false;         ///< a file of data::make_samples()
  double weight = 1;               ///< how often an epoch takes each of its rows
  std::string name = {};           ///< what the user called it; empty: the paths
};

/// A training run. The defaults train the default model on the default text.
struct TrainConfig {
  std::vector<DataSource> data;
  std::vector<DataSource> validation = {};       ///< empty: the last twentieth of each source
  data::TooLong too_long = data::TooLong::kCut;  ///< conversations longer than `sequence`
  bool any_bytes = false;     ///< take `data` that is no text, see data::check_content()
  std::string tokenizer;      ///< what made the tokens of `data`, see tokens::load(); empty: bytes
  bool bytes = false;         ///< tokens are bytes, whatever tokenizer `init` has
  models::ModelConfig model;  ///< its context must hold `sequence`
  /// Published weights or a checkpoint to begin with, as archive::WeightSource opens them, of a
  /// model of this shape; empty: new weights.
  std::string init;
  std::string adapter;      ///< with `init`: directory of LoRA adapters
  format::LoRAConfig lora;  ///< with a rank: train adapters only, from `adapter` if there is one
  std::int64_t sequence = 128;

  std::int64_t steps = 1000;
  std::int64_t global_batch = 32;  ///< sequences of all ranks and micro-steps in one step
  std::int64_t batch = 0;          ///< sequences of a rank in a micro-step; 0: as `accumulate` says
  std::int64_t accumulate = 0;     ///< micro-steps of a step; 0: as `batch` says, or 1
  double lr = 4e-3;
  double min_lr = -1;        ///< below 0: a tenth of lr
  std::int64_t warmup = -1;  ///< below 0: a twentieth of the steps
  ScheduleKind schedule = ScheduleKind::kCosine;
  std::int64_t decay_steps = -1;  ///< kWsd: the last ones, below 0: a tenth of the steps
  bool decay_all = false;         ///< weight decay also of norms and biases
  double beta1 = 0.9;             ///< AdamW, Lion, and what of Muon goes by AdamW
  double beta2 = 0.99;            ///< the same
  double eps = 1e-8;              ///< AdamW, and what of Muon goes by AdamW
  double momentum = -1;           ///< SGD and Muon; below 0: 0 for SGD, 0.95 for Muon
  double weight_decay = 0.1;
  double clip = 1.0;     ///< largest global gradient norm; 0 clips nothing
  double max_hours = 0;  ///< ends before the last step once so much time has passed; 0: never
  std::uint64_t seed = 1;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  WeightType dtype = WeightType::kFloat32;

  std::int64_t eval_every = 100;  ///< steps between evaluations; 0: only at the end
  std::int64_t eval_batches =
      10;                        ///< global batches of an evaluation; ten times as many at the end
  std::string log;               ///< JSON lines, one per step; empty: none
  std::string tensorboard = {};  ///< directory for TensorBoard's event files; empty: none
  bool keep_best = false;        ///< `out` gets the weights with the lowest validation loss
  bool dry_run = false;          ///< everything up to the first step, and nothing is written
  std::string out = "runs/model";  ///< directory of the saved model; empty: not saved
  /// Of the weights in `out`; checkpoints keep `dtype`, in which training goes on.
  SavedType out_dtype = SavedType::kFloat32;
  std::int64_t sample = 400;  ///< tokens drawn at the end
  std::string prompt = "In the beginning ";

  std::string save;             ///< directory of checkpoints; empty: none are saved
  std::int64_t save_every = 0;  ///< steps between checkpoints; 0: only at the end
  int keep = 2;                 ///< complete checkpoints that stay; 0: all
  bool resume = false;          ///< go on from the newest in `save`, if there is one

  Strategy strategy = Strategy::kFullShard;
  int shard = 0;  ///< ranks of a replica, for the strategies on a mesh
  TravelType param_dtype = TravelType::kAsWeights;
  TravelType reduce_dtype = TravelType::kAsWeights;             ///< sums are in float32 in any case
  GradientSync micro_step_sync = GradientSync::kEveryBackward;  ///< of all micro-steps but the last
  bool recompute = false;          ///< of each block: computed again in backward
  bool offload = false;            ///< shards, gradients and moments on the host; see fsdp::Offload
  int prefetch = 1;                ///< units gathered ahead of the one that computes
  bool keep_root = false;          ///< keep embeddings and head gathered during a step
  std::string transport = "auto";  ///< see comm::transport_words()
  std::string device = "auto";     ///< see InitOptions::device

  std::string trace;             ///< directory for a timeline; empty: none
  std::int64_t trace_first = 3;  ///< the steps in it, counted from 1
  std::int64_t trace_last = 5;

  double effective_momentum() const {
    return momentum >= 0 ? momentum : optimizer == OptimizerKind::kMuon ? 0.95 : 0;
  }
  double effective_min_lr() const { return min_lr < 0 ? lr / 10 : min_lr; }
  std::int64_t effective_warmup() const { return warmup < 0 ? steps / 20 : warmup; }
  std::int64_t effective_decay_steps() const { return decay_steps < 0 ? steps / 10 : decay_steps; }
  std::int64_t effective_batch(int ranks) const {
    return batch > 0 ? batch : global_batch / (ranks * (accumulate > 0 ? accumulate : 1));
  }
  /// Whether the strategy runs on a mesh of replicas and shards.
  bool has_mesh() const {
    return strategy == Strategy::kHybrid || strategy == Strategy::kHybridOptimizer ||
           strategy == Strategy::kSecondaryShard;
  }
};

/// Checks numbers and files for a run of `ranks` ranks: sizes of the model, batches that divide,
/// data that exists, is long enough and inside the vocabulary, places for output that can be
/// written. Creates nothing: a run that is refused leaves nothing behind.
/// @throws Error kInvalidArgument naming every problem in one line
void check(const TrainConfig& config, int ranks);

/// Looks at what an earlier run left in `save` and at `log`. Without `resume` there must be no
/// checkpoint and no line; with it the newest complete checkpoint must be of this model, data and
/// seed, and the log of the same run. For the process that starts the ranks, or for rank 0: others
/// may see other disks. @throws Error kInvalidArgument naming both values and what to do
void check_earlier_run(const TrainConfig& config);

}  // namespace fsdp::train
