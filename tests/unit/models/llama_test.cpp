// SPDX-License-Identifier: Apache-2.0
#include "fsdp/models/llama.hpp"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <map>

#include "fsdp/base/error.hpp"
#include "fsdp/models/generate.hpp"
#include "fsdp/models/gpt.hpp"
#include "fsdp/models/lora.hpp"

namespace fsdp::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

LlamaConfig tiny() { return std::get<LlamaConfig>(model_preset("llama-tiny")); }

/// Weights far from their start, so that a wrong layer shows.
std::shared_ptr<LanguageModel> make(const ModelConfig& config) {
  torch::manual_seed(3);
  auto model = make_model(config);
  torch::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) {
    parameter.add_(torch::randn_like(parameter), 0.2);
  }
  model->eval();
  return model;
}

at::Tensor some_tokens(std::int64_t batch, std::int64_t time) {
  torch::manual_seed(5);
  return torch::randint(256, {batch, time}, torch::kInt64);
}

// ---- the reference: Llama as its papers have it, position by position, in double -------------

using Vector = std::vector<double>;

class Reference {
 public:
  Reference(LanguageModel& model, const LlamaConfig& config) : config_(config) {
    for (const auto& item : model.named_parameters()) {
      const at::Tensor flat = item.value().detach().to(torch::kDouble).contiguous().view({-1});
      weights_[item.key()] = {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
    }
  }

  /// Logits of each position.
  std::vector<Vector> logits(const std::vector<std::int64_t>& tokens) const {
    std::vector<Vector> xs;
    for (const std::int64_t token : tokens) {
      const Vector& table = weights_.at("model.embed_tokens.weight");
      const auto row = table.begin() + token * config_.width;
      xs.emplace_back(row, row + config_.width);
    }
    for (std::int64_t i = 0; i < config_.layers; ++i) {
      block("model.layers." + std::to_string(i) + ".", xs);
    }
    const std::string head = config_.tied ? "model.embed_tokens" : "lm_head";
    for (Vector& x : xs) {
      x = project(head, norm("model.norm.weight", x));
    }
    return xs;
  }

 private:
  void block(const std::string& name, std::vector<Vector>& xs) const {
    std::vector<Vector> queries, keys, values;
    for (std::size_t t = 0; t < xs.size(); ++t) {
      const Vector x = norm(name + "input_layernorm.weight", xs[t]);
      queries.push_back(rotated(project(name + "self_attn.q_proj", x), t));
      keys.push_back(rotated(project(name + "self_attn.k_proj", x), t));
      values.push_back(project(name + "self_attn.v_proj", x));
    }
    for (std::size_t t = 0; t < xs.size(); ++t) {
      add(xs[t], project(name + "self_attn.o_proj", attention(queries[t], keys, values, t)));
      const Vector x = norm(name + "post_attention_layernorm.weight", xs[t]);
      Vector gate = project(name + "mlp.gate_proj", x);
      const Vector up = project(name + "mlp.up_proj", x);
      for (std::size_t i = 0; i < gate.size(); ++i) {
        gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
      }
      add(xs[t], project(name + "mlp.down_proj", gate));
    }
  }

  Vector attention(const Vector& query, const std::vector<Vector>& keys,
                   const std::vector<Vector>& values, std::size_t last) const {
    const std::int64_t width = config_.effective_head_width();
    Vector out(query.size());
    for (std::int64_t head = 0; head < config_.heads; ++head) {
      const std::int64_t kv = head / (config_.heads / config_.kv_heads);
      Vector weights;
      double sum = 0;
      for (std::size_t t = 0; t <= last; ++t) {
        double score = 0;
        for (std::int64_t i = 0; i < width; ++i) {
          score += query[head * width + i] * keys[t][kv * width + i];
        }
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(width))));
        sum += weights.back();
      }
      for (std::size_t t = 0; t <= last; ++t) {
        for (std::int64_t i = 0; i < width; ++i) {
          out[head * width + i] += weights[t] / sum * values[t][kv * width + i];
        }
      }
    }
    return out;
  }

  /// Pair i of a head, (i, i + half), turned by position x frequency.
  Vector rotated(Vector x, std::size_t position) const {
    const std::int64_t width = config_.effective_head_width(), half = width / 2;
    const std::vector<float> frequencies = rope_frequencies(config_);
    for (std::int64_t head = 0; head < std::ssize(x) / width; ++head) {
      for (std::int64_t i = 0; i < half; ++i) {
        double& first = x[head * width + i];
        double& second = x[head * width + half + i];
        const double angle = static_cast<double>(position) * frequencies[i];
        const double turned = first * std::cos(angle) - second * std::sin(angle);
        second = first * std::sin(angle) + second * std::cos(angle);
        first = turned;
      }
    }
    return x;
  }

  Vector norm(const std::string& name, const Vector& x) const {
    double squares = 0;
    for (const double value : x) {
      squares += value * value;
    }
    const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + config_.norm_eps);
    Vector y;
    for (std::size_t i = 0; i < x.size(); ++i) {
      y.push_back(x[i] * scale * weights_.at(name)[i]);
    }
    return y;
  }

  Vector project(const std::string& name, const Vector& x) const {
    const Vector& weight = weights_.at(name + ".weight");
    const auto bias = weights_.find(name + ".bias");
    Vector y(weight.size() / x.size());
    for (std::size_t row = 0; row < y.size(); ++row) {
      y[row] = bias == weights_.end() ? 0 : bias->second[row];
      for (std::size_t i = 0; i < x.size(); ++i) {
        y[row] += weight[row * x.size() + i] * x[i];
      }
    }
    return y;
  }

  static void add(Vector& x, const Vector& y) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] += y[i];
    }
  }

  LlamaConfig config_;
  std::map<std::string, Vector> weights_;
};

/// Largest difference between the model's logits and the reference's.
double error_of(const LlamaConfig& config) {
  const auto model = make(config);
  const at::Tensor tokens = some_tokens(1, 20);
  torch::NoGradGuard no_grad;
  const at::Tensor logits = model->forward(tokens)[0].to(torch::kDouble);
  const auto expected =
      Reference(*model, config)
          .logits({tokens.data_ptr<std::int64_t>(), tokens.data_ptr<std::int64_t>() + 20});
  double worst = 0;
  for (std::size_t t = 0; t < expected.size(); ++t) {
    const at::Tensor row = torch::tensor(expected[t], torch::kDouble);
    worst =
        std::max(worst, (logits[static_cast<std::int64_t>(t)] - row).abs().max().item<double>());
  }
  EXPECT_GT(logits.std().item<double>(), 0.1);
  return worst;
}

TEST(LlamaTest, LogitsAreThoseOfAPlainReference) {
  constexpr double kTolerance = 1e-4;
  LlamaConfig config = tiny();
  EXPECT_LT(error_of(config), kTolerance);
  config.tied = true;
  config.attention_bias = config.mlp_bias = true;
  config.kv_heads = 1;
  EXPECT_LT(error_of(config), kTolerance) << "tied, biases, one key head";
  config.kv_heads = 4;
  config.head_width = 12;
  config.rope = {.theta = 100, .scaling = RopeScaling::kLinear, .factor = 3};
  EXPECT_LT(error_of(config), kTolerance) << "heads wider than their share, linear scaling";
  config.rope = {
      .theta = 100, .scaling = RopeScaling::kLlama3, .factor = 8, .original_context = 16};
  EXPECT_LT(error_of(config), kTolerance) << "llama3 scaling";
}

TEST(LlamaTest, FrequenciesAreThoseOfTransformers) {
  // transformers 5.24, modeling_rope_utils, for a head of 16 features.
  LlamaConfig config{.width = 64, .heads = 4};
  config.rope.theta = 500000;
  const auto near = [](float value) { return ::testing::FloatEq(value); };
  EXPECT_THAT(rope_frequencies(config),
              ElementsAre(near(1.0F), near(0.193922758F), near(0.0376060307F), near(0.00729266508F),
                          near(0.00141421345F), near(0.000274248188F), near(5.31829573e-05F),
                          near(1.03133852e-05F)));
  config.rope = {.theta = 500000, .scaling = RopeScaling::kLlama3, .factor = 8};
  EXPECT_THAT(rope_frequencies(config),
              ElementsAre(near(1.0F), near(0.193922758F), near(0.0376060307F), near(0.00729266508F),
                          near(0.000524846022F), near(3.42810235e-05F), near(6.64786967e-06F),
                          near(1.28917316e-06F)));
  config.rope = {.theta = 500000, .scaling = RopeScaling::kLinear, .factor = 4};
  EXPECT_FLOAT_EQ(rope_frequencies(config)[1], 0.0484806895F);
}

TEST(LlamaTest, HasTheNamesAndShapesOfHuggingFace) {
  const auto model = make(tiny());
  std::map<std::string, std::vector<std::int64_t>> found;
  for (const auto& item : model->named_parameters()) {
    found[item.key()] = item.value().sizes().vec();
  }
  EXPECT_EQ(found.size(), 2u * 9 + 3);
  const std::map<std::string, std::vector<std::int64_t>> some = {
      {"model.embed_tokens.weight", {256, 32}},
      {"model.layers.1.input_layernorm.weight", {32}},
      {"model.layers.1.self_attn.q_proj.weight", {32, 32}},
      {"model.layers.1.self_attn.k_proj.weight", {16, 32}},
      {"model.layers.1.self_attn.o_proj.weight", {32, 32}},
      {"model.layers.0.mlp.gate_proj.weight", {88, 32}},
      {"model.layers.0.mlp.down_proj.weight", {32, 88}},
      {"model.layers.0.post_attention_layernorm.weight", {32}},
      {"model.norm.weight", {32}},
      {"lm_head.weight", {256, 32}}};
  for (const auto& [name, shape] : some) {
    EXPECT_EQ(found[name], shape) << name;
  }
}

TEST(LlamaTest, ParameterCountIsWhatTheConfigSays) {
  EXPECT_EQ(parameter_count(model_preset("smollm2-135m")), 134'515'008);
  LlamaConfig config = tiny();
  for (const bool flag : {false, true}) {
    config.tied = config.attention_bias = config.mlp_bias = flag;
    std::int64_t sum = 0;
    for (const auto& parameter : make(config)->parameters()) {
      sum += parameter.numel();
    }
    EXPECT_EQ(sum, parameter_count(config));
  }
}

TEST(LanguageModelTest, TheCacheChangesNoLogits) {
  for (const char* preset : {"llama-tiny", "tiny", "mistral-tiny", "qwen2-tiny", "qwen3-tiny"}) {
    const ModelConfig config = model_preset(preset);
    const auto model = make(config);
    const at::Tensor tokens = some_tokens(2, 24);
    torch::NoGradGuard no_grad;
    const at::Tensor whole = model->forward(tokens);
    KeyValueCache cache(24);
    // In parts of several, one and again several tokens.
    std::int64_t seen = 0;
    for (const std::int64_t part : {5, 1, 1, 7, 1, 9}) {
      const at::Tensor next = model->forward(tokens.narrow(1, seen, part), cache);
      seen += part;
      EXPECT_EQ(cache.length(), seen);
      EXPECT_LT((next - whole.select(1, seen - 1)).abs().max().item<double>(), 2e-5)
          << model_type(config) << " after " << seen;
    }
    EXPECT_THROW(model->forward(tokens.narrow(1, 0, 1), cache), Error) << "the cache is full";
  }
}

TEST(LanguageModelTest, TheCacheDrawsTheSameText) {
  for (const char* preset : {"llama-tiny", "tiny", "mistral-tiny", "qwen2-tiny", "qwen3-tiny"}) {
    const ModelConfig config = model_preset(preset);
    const auto model = make(config);
    for (const double temperature : {0.0, 1.0}) {
      GenerateOptions options{.tokens = 50, .temperature = temperature, .seed = 2};
      const auto with = generate(*model, {1, 2, 3}, options);
      options.use_cache = false;
      EXPECT_EQ(with, generate(*model, {1, 2, 3}, options)) << "also beyond the context of 32";
    }
  }
}

/// Rows of some documents, of others and of one.
PackedBatch packed_batch() {
  const Documents documents = {{3, 1, 20}, {23, 1}, {24}};
  PackedBatch batch{.tokens = some_tokens(3, 24),
                    .targets = torch::randint(256, {3, 24}, torch::kInt64),
                    .documents = std::make_shared<Documents>(documents)};
  // Nothing is learnt from some, of a short document from none.
  batch.targets.masked_fill_(torch::rand({3, 24}) < 0.4, PackedBatch::kNoTarget);
  batch.targets[0][3] = PackedBatch::kNoTarget;
  return batch;
}

TEST(LanguageModelTest, PackedDocumentsLearnAsIfEachHadARowOfItsOwn) {
  for (const char* preset : {"llama-tiny", "tiny", "mistral-tiny", "qwen3-tiny"}) {
    const auto model = make(model_preset(preset));
    const PackedBatch batch = packed_batch();
    model->forward(batch).backward();
    std::map<std::string, at::Tensor> packed;
    for (const auto& item : model->named_parameters()) {
      packed[item.key()] = item.value().grad().clone();
    }
    const double loss = model->forward(batch).item<double>();
    model->zero_grad();
    double sum = 0;
    for (std::size_t row = 0; row < 3; ++row) {
      std::int64_t begin = 0;
      for (const std::int64_t length : (*batch.documents)[row]) {
        const auto part = [&](const at::Tensor& x) {
          return x.narrow(0, static_cast<std::int64_t>(row), 1).narrow(1, begin, length);
        };
        const at::Tensor logits = model->forward(part(batch.tokens)).view({length, -1});
        const at::Tensor targets = part(batch.targets).reshape({-1});
        for (std::int64_t i = 0; i < length; ++i) {
          if (targets[i].item<std::int64_t>() >= 0) {
            const at::Tensor own = torch::nn::functional::cross_entropy(logits.narrow(0, i, 1),
                                                                        targets.narrow(0, i, 1));
            sum += own.item<double>();
            own.backward({}, /*retain_graph=*/true);
          }
        }
        begin += length;
      }
    }
    EXPECT_NEAR(loss, sum, 1e-6 * sum) << preset;
    for (const auto& item : model->named_parameters()) {
      EXPECT_TRUE(torch::allclose(packed[item.key()], item.value().grad(), 1e-4, 1e-4))
          << preset << ": " << item.key();
    }
  }
}

TEST(LanguageModelTest, DocumentsThatAreNoPartOfTheirRowAreRefused) {
  const auto model = make(tiny());
  PackedBatch batch = packed_batch();
  for (const Documents& wrong : {Documents{{3, 1, 20}, {24}}, Documents{{3, 1, 19}, {24}, {24}},
                                 Documents{{3, 0, 21}, {24}, {24}}}) {
    batch.documents = std::make_shared<Documents>(wrong);
    EXPECT_THROW(model->forward(batch), Error);
  }
  batch.documents = nullptr;
  EXPECT_THROW(model->forward(batch), Error);
}

TEST(LanguageModelTest, EveryParameterGetsAGradient) {
  LlamaConfig config = tiny();
  config.attention_bias = config.mlp_bias = true;
  const auto model = make(config);
  const at::Tensor tokens = some_tokens(2, 17);
  model->forward(tokens.narrow(1, 0, 16), tokens.narrow(1, 1, 16)).backward();
  for (const auto& item : model->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    // A bias of all keys shifts every score of a query alike, but for the rotation.
    EXPECT_GT(item.value().grad().abs().sum().item<double>(), 0) << item.key();
  }
}

TEST(LanguageModelTest, TopPKeepsTheFewestThatReachIt) {
  const auto model = make(tiny());
  std::map<std::int64_t, int> drawn;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    ++drawn[generate(*model, {7},
                     {.tokens = 1, .temperature = 1, .top_k = 0, .top_p = 0.3, .seed = seed})[0]];
  }
  torch::NoGradGuard no_grad;
  const at::Tensor probabilities =
      torch::softmax(model->forward(torch::tensor({{7}}, torch::kInt64))[0][0], 0);
  const auto [sorted, order] = probabilities.sort(-1, true);
  double sum = 0;
  std::map<std::int64_t, bool> allowed;
  for (std::int64_t i = 0; sum < 0.3; ++i) {
    sum += sorted[i].item<double>();
    allowed[order[i].item<std::int64_t>()] = true;
  }
  EXPECT_GT(allowed.size(), 1u);
  EXPECT_GT(drawn.size(), 1u);
  for (const auto& [token, count] : drawn) {
    EXPECT_TRUE(allowed.contains(token)) << token;
  }
  EXPECT_THROW(generate(*model, {7}, {.top_p = 0}), Error);
}

TEST(LanguageModelTest, StopsAtAnEndAndTakesWhatRanksAgreeOn) {
  const auto model = make(tiny());
  const auto all = generate(*model, {7}, {.tokens = 10, .temperature = 0});
  const auto cut = generate(*model, {7}, {.tokens = 10, .temperature = 0, .ends = {all[2]}});
  EXPECT_LE(cut.size(), 3u);
  EXPECT_EQ(cut.back(), all[2]);
  const auto agreed = generate(
      *model, {7}, {.tokens = 4, .temperature = 0, .agree = [](std::int64_t) { return 9; }});
  EXPECT_THAT(agreed, ElementsAre(9, 9, 9, 9));
}

// ---- adapters --------------------------------------------------------------------------------

TEST(LoRATest, ChangesNothingAtFirstAndAloneLearns) {
  for (const auto& [config, target] :
       {std::pair(ModelConfig(tiny()), "q_proj"), std::pair(model_preset("tiny"), "c_attn")}) {
    const auto model = make(config);
    const at::Tensor tokens = some_tokens(2, 17);
    const at::Tensor before = model->forward(tokens);
    EXPECT_EQ(add_adapters(*model, {.rank = 4, .alpha = 8, .targets = {target}}), 2);
    EXPECT_TRUE(torch::equal(before, model->forward(tokens)));
    model->forward(tokens.narrow(1, 0, 16), tokens.narrow(1, 1, 16)).backward();
    int adapters = 0;
    for (const auto& item : model->named_parameters()) {
      EXPECT_EQ(item.value().grad().defined(), is_adapter(item.key())) << item.key();
      adapters += is_adapter(item.key()) ? 1 : 0;
    }
    EXPECT_EQ(adapters, 4);
  }
}

TEST(LoRATest, AddsScaledBTimesA) {
  LlamaConfig config = tiny();
  const auto plain = make(config), adapted = make(config);
  add_adapters(*adapted, {.rank = 2, .alpha = 6, .targets = {"mlp.down_proj"}});
  torch::NoGradGuard no_grad;
  auto parameters = adapted->named_parameters();
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    at::Tensor b = parameters[layer + "mlp.down_proj.lora_B.weight"];
    b.normal_(0, 0.1);
    const at::Tensor a = parameters[layer + "mlp.down_proj.lora_A.weight"];
    EXPECT_EQ(a.sizes(), (std::vector<std::int64_t>{2, 88}));
    plain->named_parameters()[layer + "mlp.down_proj.weight"].add_(3 * torch::mm(b, a));
  }
  const at::Tensor tokens = some_tokens(1, 16);
  EXPECT_TRUE(torch::allclose(plain->forward(tokens), adapted->forward(tokens), 1e-4, 1e-4));
}

TEST(LoRATest, NamesAreThoseOfPeft) {
  const ModelConfig llama = tiny(), gpt = model_preset("tiny");
  const std::string in_llama = "model.layers.0.self_attn.q_proj.lora_A.weight";
  EXPECT_EQ(peft_name(llama, in_llama), "base_model.model." + in_llama);
  const std::string in_gpt = "h.0.attn.c_attn.lora_B.weight";
  EXPECT_EQ(peft_name(gpt, in_gpt), "base_model.model.transformer." + in_gpt);
  EXPECT_EQ(parameter_of_peft(gpt, peft_name(gpt, in_gpt)), in_gpt);
  EXPECT_EQ(parameter_of_peft(llama, peft_name(llama, in_llama)), in_llama);
}

TEST(LoRATest, AnUnknownTargetIsRefusedByName) {
  const auto model = make(tiny());
  try {
    add_adapters(*model, {.rank = 2, .targets = {"q_proj", "query"}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("no projection 'query'"));
    EXPECT_THAT(error.text(), HasSubstr("gate_proj"));
  }
}

}  // namespace
}  // namespace fsdp::models
