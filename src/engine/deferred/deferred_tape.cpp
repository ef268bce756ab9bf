// SPDX-License-Identifier: Apache-2.0
#include "engine/deferred/deferred_tape.hpp"

#include <ATen/Context.h>
#include <ATen/core/List.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <string_view>
#include <utility>

#include "engine/touch/touch.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

namespace {

/// In-place operators whose result does not depend on what was there.
constexpr std::array<std::string_view, 10> kOverwriting = {
    "aten::normal_",     "aten::uniform_",     "aten::zero_",   "aten::fill_",
    "aten::copy_",       "aten::exponential_", "aten::random_", "aten::cauchy_",
    "aten::log_normal_", "aten::geometric_"};

at::Tensor get(const torch::jit::Stack& stack, const ArgumentPosition& place) {
  const c10::IValue& value = stack[place.index];
  return place.element < 0 ? value.toTensor()
                           : value.toListRef()[static_cast<std::size_t>(place.element)].toTensor();
}

void put(torch::jit::Stack& stack, const ArgumentPosition& place, const at::Tensor& tensor) {
  if (place.element < 0) {
    stack[place.index] = tensor;
  } else {
    stack[place.index].toList().set(static_cast<std::size_t>(place.element), tensor);
  }
}

/// The arguments once more, with lists of their own, which put() may change.
torch::jit::Stack copy_of(const torch::jit::Stack& arguments) {
  torch::jit::Stack copy;
  for (const c10::IValue& value : arguments) {
    copy.push_back(value.isList() ? c10::IValue(value.toList().copy()) : value);
  }
  return copy;
}

std::optional<std::size_t> generator_argument(const c10::FunctionSchema& schema) {
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    if (schema.arguments()[i].name() == "generator") {
      return i;
    }
  }
  return std::nullopt;
}

at::Tensor state_of(at::Generator generator) {
  std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const at::Tensor& state) {
  std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

/// Leaves the generator at a seed that follows from its state and does not repeat it.
void mark(at::Generator generator, const at::Tensor& state) {
  const std::string_view bytes(static_cast<const char*>(state.const_data_ptr()), state.nbytes());
  std::lock_guard lock(generator.mutex());
  generator.set_current_seed(std::hash<std::string_view>{}(bytes) ^ 0x9e3779b97f4a7c15U);
}

/// One evaluation at a time: operators that take no generator draw from the process's own.
std::recursive_mutex& drawing() {
  static std::recursive_mutex mutex;
  return mutex;
}

}  // namespace

bool is_random(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::nondeterministic_seeded);
}

LazyBlock::LazyBlock(std::size_t bytes) : bytes_(std::max<std::size_t>(bytes, 1)) {
  data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
               -1, 0);
  if (data_ == MAP_FAILED) {
    fail(ErrorCode::kIo, "[DeferredInit] cannot reserve ", bytes_,
         " bytes of address space: ", std::strerror(errno),
         ". Nothing is used yet: look for a limit (ulimit -v)");
  }
}

LazyBlock::~LazyBlock() { munmap(data_, bytes_); }

at::Tensor DeferredView::of(const c10::Storage& memory) const {
  return at::empty({0}, at::TensorOptions(dtype).device(memory.device()))
      .set_(memory, offset, sizes, strides);
}

std::size_t DeferredTape::add_storage(std::int64_t bytes, c10::Device device,
                                      std::shared_ptr<LazyBlock> block) {
  std::lock_guard lock(mutex_);
  records_.push_back({bytes, device, std::move(block), {}});
  return records_.size() - 1;
}

void DeferredTape::add_step(DeferredStep step) {
  std::lock_guard lock(mutex_);
  if (is_random(step.op)) {
    note_draw(step);
  }
  std::vector<std::size_t> filled;
  filled.reserve(step.products.size());
  for (const DeferredStep::Product& product : step.products) {
    filled.push_back(product.storage);
  }
  for (const DeferredStep::Operand& operand : step.operands) {
    if (operand.is_written) {
      filled.push_back(operand.view.storage);
    }
  }
  std::ranges::sort(filled);
  filled.erase(std::ranges::unique(filled).begin(), filled.end());
  for (std::size_t storage : filled) {
    records_[storage].steps.push_back(steps_.size());
  }
  steps_.push_back(std::move(step));
}

void DeferredTape::note_draw(DeferredStep& step) {
  const auto argument = generator_argument(step.op.schema());
  c10::Device device = c10::kCPU;
  if (!step.products.empty()) {
    device = records_[step.products.front().storage].device;
  } else if (!step.operands.empty()) {
    device = records_[step.operands.front().view.storage].device;
  }
  at::Generator generator = at::globalContext().defaultGenerator(device);
  if (argument.has_value() && step.arguments[*argument].isGenerator()) {
    generator = step.arguments[*argument].toGenerator();
  }
  const at::Tensor state = state_of(generator);
  auto stream = std::find_if(streams_.rbegin(), streams_.rend(),
                             [&](const Stream& other) { return other.generator == generator; });
  if (stream == streams_.rend() || !stream->marker.equal(state)) {
    mark(generator, state);
    streams_.push_back({generator, {}, {state}, state_of(generator)});
    stream = streams_.rbegin();
  }
  step.draw = {.stream = static_cast<std::size_t>(streams_.rend() - stream) - 1,
               .index = stream->steps.size()};
  stream->steps.push_back(steps_.size());
}

torch::jit::Stack DeferredTape::run_now(DeferredStep step) {
  c10::impl::ExcludeDispatchKeyGuard no_touch(kTouchKey);
  c10::NoGradGuard no_grad;
  std::scoped_lock lock(mutex_, drawing());
  add_step(std::move(step));
  return run(steps_.size() - 1, {});
}

c10::Storage DeferredTape::fill(std::size_t storage) {
  c10::impl::ExcludeDispatchKeyGuard no_touch(kTouchKey);
  c10::NoGradGuard no_grad;
  std::scoped_lock lock(mutex_, drawing());
  return fill(storage, steps_.size());
}

bool DeferredTape::produces(const DeferredStep& step, std::size_t storage) {
  return std::ranges::any_of(step.products, [&](const auto& of) { return of.storage == storage; });
}

bool DeferredTape::overwrites(const DeferredStep& step, std::size_t storage) const {
  const bool is_known =
      std::ranges::find(kOverwriting, step.op.schema().name()) != kOverwriting.end();
  return is_known && std::ranges::any_of(step.operands, [&](const DeferredStep::Operand& operand) {
           std::int64_t numel = 1;
           for (std::int64_t size : operand.view.sizes) {
             numel *= size;
           }
           const auto itemsize = static_cast<std::int64_t>(c10::elementSize(operand.view.dtype));
           // As many elements as there is room for: each has its own place, or memory overlaps,
           // which these operators refuse.
           return operand.is_written && operand.view.storage == storage &&
                  numel * itemsize == records_[storage].bytes;
         });
}

c10::Storage DeferredTape::fill(std::size_t storage, std::size_t end) {
  const Record& record = records_[storage];
  const auto last = std::ranges::lower_bound(record.steps, end);
  auto first = last;
  bool is_defined = false;
  while (first != record.steps.begin() && !is_defined) {
    --first;
    is_defined = produces(steps_[*first], storage) || overwrites(steps_[*first], storage);
  }
  c10::Storage memory;
  if (first != last && produces(steps_[*first], storage)) {
    torch::jit::Stack results = run(*first, {});
    for (const DeferredStep::Product& product : steps_[*first].products) {
      if (product.storage == storage) {
        memory = get(results, product.place).storage();
      }
    }
    ++first;
  } else {
    const at::Tensor bytes =
        at::empty({record.bytes}, at::TensorOptions(at::kByte).device(record.device));
    if (!is_defined && record.block != nullptr && record.bytes > 0) {
      std::memcpy(bytes.data_ptr(), record.block->data(), static_cast<std::size_t>(record.bytes));
    }
    memory = bytes.storage();
  }
  for (; first != last; ++first) {
    run(*first, {{storage, memory}});
  }
  return memory;
}

torch::jit::Stack DeferredTape::run(std::size_t index, const Memories& own) {
  const DeferredStep& step = steps_[index];
  if (!step.draw.has_value()) {
    return call(step, index, own, nullptr);
  }
  const auto [of, draw] = *step.draw;
  Stream& stream = streams_[of];
  Random random{stream.generator, state_before(of, draw)};
  torch::jit::Stack results = call(step, index, own, &random);
  if (stream.states.size() == draw + 1) {
    stream.states.push_back(random.state);
  }
  return results;
}

/// Runs what was drawn before on scratch memory, as far as nobody has run it yet.
const at::Tensor& DeferredTape::state_before(std::size_t stream, std::size_t draw) {
  while (streams_[stream].states.size() <= draw) {
    const std::size_t index = streams_[stream].steps[streams_[stream].states.size() - 1];
    Memories scratch;
    for (const DeferredStep::Operand& operand : steps_[index].operands) {
      const std::size_t storage = operand.view.storage;
      if (operand.is_written && overwrites(steps_[index], storage)) {
        const Record& record = records_[storage];
        scratch[storage] =
            at::empty({record.bytes}, at::TensorOptions(at::kByte).device(record.device)).storage();
      }
    }
    run(index, scratch);
  }
  return streams_[stream].states[draw];
}

torch::jit::Stack DeferredTape::call(const DeferredStep& step, std::size_t index,
                                     const Memories& own, Random* random) {
  for (const DeferredStep::Held& held : step.held) {
    FSDP_CHECK(held.tensor._version() == held.version, ErrorCode::kInvalidArgument,
               "[DeferredInit] a tensor that ", step.op.schema().name(),
               " took was changed since then: give it a clone()");
  }
  torch::jit::Stack stack = copy_of(step.arguments);
  for (const DeferredStep::Operand& operand : step.operands) {
    const auto known = own.find(operand.view.storage);
    put(stack, operand.place,
        operand.view.of(known != own.end() ? known->second : fill(operand.view.storage, index)));
  }
  if (random == nullptr) {
    step.op.callBoxed(&stack);
    return stack;
  }
  // A generator of our own where the operator takes one, lest the process's be disturbed.
  const auto argument = generator_argument(step.op.schema());
  at::Generator generator = random->generator;
  if (argument.has_value()) {
    generator = generator.clone();
    stack[*argument] = generator;
  }
  const at::Tensor before = state_of(generator);
  set_state(generator, random->state);
  try {
    step.op.callBoxed(&stack);
  } catch (...) {
    set_state(generator, before);
    throw;
  }
  random->state = state_of(generator);
  set_state(generator, before);
  return stack;
}

}  // namespace fsdp::engine
