// SPDX-License-Identifier: Apache-2.0
/// `fsdp checkpoint`: what may be done to checkpoints without ranks.
#include <cstdio>
#include <map>
#include <memory>

#include "bad_input.hpp"
#include "base/text.hpp"
#include "commands.hpp"
#include "fsdp/archive/diff.hpp"
#include "fsdp/archive/listing.hpp"
#include "fsdp/archive/reader.hpp"
#include "fsdp/archive/weights.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/memory/ledger.hpp"

namespace fsdp::apps {
namespace {

using namespace fsdp::archive;
using base::shown;

struct CheckpointFlags {
  std::string first, second, third;
  std::string max_size = "5GB";
  std::string dtype;
  bool tensors = false;
};

/// "5GB", "300 MB", "1024": bytes in powers of ten, as Hugging Face counts.
std::int64_t parse_size(const std::string& text) {
  std::size_t end = 0;
  double number = 0;
  try {
    number = std::stod(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  std::string unit = text.substr(end);
  unit.erase(0, unit.find_first_not_of(' '));
  const std::map<std::string, double> factors = {{"", 1},     {"B", 1},    {"KB", 1e3},
                                                 {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}};
  const auto factor = factors.find(unit);
  FSDP_CHECK(end > 0 && factor != factors.end() && number > 0 && number * factor->second >= 1 &&
                 number * factor->second < 9e18,
             ErrorCode::kInvalidArgument, "--max-size is '", text,
             "', must be a size such as 5GB, 300MB or 1024");
  return static_cast<std::int64_t>(number * factor->second);
}

int list(const CheckpointFlags& flags) {
  need_path("DIR", flags.first, Wanted::kFile);
  const auto all = list_checkpoints(flags.first);
  for (const FoundCheckpoint& found : all) {
    std::printf("%10lld  %10s  %s%s%s\n", static_cast<long long>(found.step),
                memory::format_bytes(found.bytes).c_str(), shown(found.path).c_str(),
                found.is_complete() ? "" : "  incomplete: ", shown(found.problem).c_str());
  }
  if (all.empty()) {
    std::printf("no checkpoint in '%s'\n", flags.first.c_str());
  }
  return kSuccess;
}

void show_tensors(const Index& index, Section section, bool each) {
  std::int64_t bytes = 0, elements = 0, count = 0;
  for (const Tensor& tensor : index.tensors) {
    if (tensor.section == section) {
      bytes += tensor.bytes;
      elements += numel(tensor.shape);
      ++count;
    }
  }
  std::printf("%-10s %lld tensors, %lld elements, %s\n", to_string(section),
              static_cast<long long>(count), static_cast<long long>(elements),
              memory::format_bytes(bytes).c_str());
  for (const Tensor& tensor : index.tensors) {
    if (each && tensor.section == section) {
      std::string shape;
      for (const std::int64_t size : tensor.shape) {
        shape += (shape.empty() ? "" : ", ") + std::to_string(size);
      }
      std::printf("  %-40s %-5s [%s]  %s\n", shown(tensor.name).c_str(), tensor.dtype.c_str(),
                  shape.c_str(), shown(tensor.file).c_str());
    }
  }
}

int show(const CheckpointFlags& flags) {
  need_path("PATH", flags.first, Wanted::kFile);
  const Checkpoint checkpoint(resolve_checkpoint(flags.first));
  const Index& index = checkpoint.index();
  std::printf("%s\nstep       %lld\n", checkpoint.path().c_str(),
              static_cast<long long>(index.step));
  for (const StoredFile& file : index.files) {
    std::printf("file       %s, %s\n", shown(file.name).c_str(),
                memory::format_bytes(file.bytes).c_str());
  }
  for (const Section section : {Section::kModel, Section::kOptimizer, Section::kState}) {
    show_tensors(index, section, flags.tensors);
  }
  for (const auto& [alias, name] : index.aliases) {
    std::printf("alias      %s is %s\n", shown(alias).c_str(), shown(name).c_str());
  }
  for (const auto& [section, values] : index.values) {
    for (const auto& [key, value] : values) {
      std::printf("%-10s %s = %s\n", shown(section).c_str(), shown(key).c_str(),
                  shown(to_text(value)).c_str());
    }
  }
  return kSuccess;
}

int verify(const CheckpointFlags& flags) {
  need_path("PATH", flags.first, Wanted::kFile);
  const std::string path = resolve_checkpoint(flags.first);
  const std::vector<std::string> problems = verify_checkpoint(path);
  for (const std::string& problem : problems) {
    std::printf("%s\n", shown(problem).c_str());
  }
  std::printf("%s: %s\n", path.c_str(),
              problems.empty() ? "every byte is as it was saved" : "damaged");
  return problems.empty() ? kSuccess : kFailure;
}

int write(const CheckpointFlags& flags, const WriteWeightsOptions& options) {
  need_path("SOURCE", flags.first, Wanted::kModel);
  as_bad_input([&] { write_weights(WeightSource(flags.first), flags.second, options); });
  std::printf("written to %s\n", flags.second.c_str());
  return kSuccess;
}

int merge(const CheckpointFlags& flags) {
  FSDP_CHECK(flags.second.ends_with(".safetensors"), ErrorCode::kInvalidArgument, "'", flags.second,
             "' must end in .safetensors: all weights go into that one file");
  return write(flags, {});
}

int split(const CheckpointFlags& flags) {
  FSDP_CHECK(!flags.second.ends_with(".safetensors"), ErrorCode::kInvalidArgument, "'",
             flags.second, "' names one file: name a directory");
  return write(flags, {.max_file_bytes = parse_size(flags.max_size)});
}

int convert(const CheckpointFlags& flags) {
  const std::map<std::string, std::string> names = {
      {"float32", "F32"}, {"float64", "F64"}, {"float16", "F16"}, {"bfloat16", "BF16"}};
  return write(flags, {.dtype = names.at(flags.dtype)});
}

/// Weights and adapters become weights.
int merge_lora(const CheckpointFlags& flags) {
  need_path("SOURCE", flags.first, Wanted::kModel);
  need_path("ADAPTER", flags.second, Wanted::kModel);
  as_bad_input(
      [&] { write_weights(WeightSource::with_adapter(flags.first, flags.second), flags.third); });
  std::printf("written to %s\n", flags.third.c_str());
  return kSuccess;
}

int diff(const CheckpointFlags& flags) {
  need_path("FIRST", flags.first, Wanted::kModel);
  need_path("SECOND", flags.second, Wanted::kModel);
  std::vector<std::string> lines;
  as_bad_input([&] { lines = diff_weights(flags.first, flags.second); });
  for (const std::string& line : lines) {
    std::printf("%s\n", shown(line).c_str());
  }
  if (lines.empty()) {
    std::printf("equal\n");
  }
  return lines.empty() ? kSuccess : kFailure;
}

}  // namespace

Action add_checkpoint(CLI::App& app) {
  auto flags = std::make_shared<CheckpointFlags>();
  auto chosen = std::make_shared<std::function<int(const CheckpointFlags&)>>();
  CLI::App* command = app.add_subcommand(
      "checkpoint", "List, check, compare and rewrite checkpoints, without ranks");
  command->require_subcommand(1);
  const auto add = [&](const char* name, const char* text, int (*action)(const CheckpointFlags&)) {
    CLI::App* verb = command->add_subcommand(name, text);
    verb->callback([chosen, action] { *chosen = action; });
    return verb;
  };
  const auto path = [&](CLI::App* verb, const char* name, std::string& value, const char* text) {
    verb->add_option(name, value, text)->required();
  };
  const char* kSource =
      "A checkpoint, a run's directory (its newest complete one), weights as Hugging Face writes "
      "them, or a .gguf file of a Llama model";
  path(add("ls", "All checkpoints in a directory, also incomplete ones", list), "DIR", flags->first,
       "The directory given to fsdp train --save");
  CLI::App* one = add("show", "What a checkpoint holds", show);
  path(one, "PATH", flags->first, "A checkpoint, or a run's directory");
  one->add_flag("--tensors", flags->tensors, "Each tensor, too");
  path(add("verify", "Read every byte and compare all checksums; 1 when one differs", verify),
       "PATH", flags->first, "A checkpoint, or a run's directory");
  CLI::App* merged = add("merge", "Write all weights into one safetensors file", merge);
  path(merged, "SOURCE", flags->first, kSource);
  path(merged, "FILE", flags->second, "New file, ends in .safetensors");
  CLI::App* parts = add("split", "Write weights into a directory of several files", split);
  path(parts, "SOURCE", flags->first, kSource);
  path(parts, "DIR", flags->second, "New directory");
  parts->add_option("--max-size", flags->max_size, "Largest file, such as 300MB")
      ->capture_default_str();
  CLI::App* converted = add("convert", "Write weights in another precision", convert);
  path(converted, "SOURCE", flags->first, kSource);
  path(converted, "TARGET", flags->second, "New directory, or a file that ends in .safetensors");
  converted->add_option("--dtype", flags->dtype, "float32, float64, float16 or bfloat16")
      ->required()
      ->check(CLI::IsMember({"float32", "float64", "float16", "bfloat16"}));
  CLI::App* adapted =
      add("merge-lora", "Add LoRA adapters to the weights they belong to", merge_lora);
  path(adapted, "SOURCE", flags->first, kSource);
  path(adapted, "ADAPTER", flags->second, "Directory that PEFT or fsdp train --lora-rank wrote");
  path(adapted, "TARGET", flags->third, "New directory, or a file that ends in .safetensors");
  CLI::App* compared = add("diff", "In what two differ; 1 when they do", diff);
  path(compared, "FIRST", flags->first, kSource);
  path(compared, "SECOND", flags->second, kSource);
  command->footer(
      "Examples:\n"
      "  fsdp checkpoint ls runs/mine\n"
      "  fsdp checkpoint show runs/mine --tensors\n"
      "  fsdp checkpoint verify runs/mine/step-00000500\n"
      "  fsdp checkpoint merge runs/mine model.safetensors\n"
      "  fsdp checkpoint split runs/mine hf-model --max-size 2GB\n"
      "  fsdp checkpoint convert runs/mine half --dtype bfloat16\n"
      "  fsdp checkpoint convert SmolLM2-135M.gguf smollm2 --dtype float32\n"
      "  fsdp checkpoint merge-lora smollm2 runs/adapter smollm2-kjv\n"
      "  fsdp checkpoint diff runs/mine/step-00000500 runs/other\n"
      "\n"
      "Exit codes: 0 success (verify: sound, diff: equal), 1 failure (verify: damaged, diff:\n"
      "different), 2 bad input, such as a path that does not exist. Nothing is overwritten.");
  return [flags, chosen] { return (*chosen)(*flags); };
}

}  // namespace fsdp::apps
