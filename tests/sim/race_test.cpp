// SPDX-License-Identifier: Apache-2.0
/// The checker of the simulated device: planted races are all reported, right programs are not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "support/sim/launch.hpp"
#include "support/sim/sim.hpp"

namespace fsdp::test {
namespace {

constexpr std::int64_t kNumel = 64;

/// Two streams besides the default one, and what one does on them.
class Streams {
 public:
  c10::Stream a = fresh(), b = fresh();

  static c10::impl::VirtualGuardImpl guard() {
    return c10::impl::VirtualGuardImpl(c10::DeviceType::PrivateUse1);
  }
  static c10::Stream main() { return guard().getDefaultStream(sim::device()); }
  static c10::Event record(const c10::Stream& stream) {
    c10::Event event(c10::DeviceType::PrivateUse1);
    event.record(stream);
    return event;
  }
  static void order(const c10::Stream& before, const c10::Stream& after) {
    after.wait(record(before));
  }

 private:
  static c10::Stream fresh() { return guard().getNewStream(sim::device()); }
};

template <class Work>
auto on(const c10::Stream& stream, Work work) {
  const c10::StreamGuard guard(stream);
  return work();
}

at::Tensor device_zeros(std::int64_t numel = kNumel) {
  at::Tensor zeros = torch::zeros({numel}, at::TensorOptions(sim::device()));
  Streams::main().synchronize();  // whoever uses it comes after
  return zeros;
}
at::Tensor pinned_ones() { return torch::ones({kNumel}, at::TensorOptions().pinned_memory(true)); }

struct Program {
  friend void PrintTo(const Program& program, std::ostream* out) { *out << program.name; }
  std::string name;
  std::function<void(Streams)> run;
  std::vector<std::string> reported = {};  ///< in the first report; none: it is right
};

/// A gather's slot that is filled and read in turn, with or without the way back.
void use_ring(const Streams& streams, bool waits_for_reader) {
  at::Tensor slot = device_zeros(), sum = device_zeros();
  for (int turn = 0; turn < 3; ++turn) {
    if (waits_for_reader) {
      Streams::order(streams.b, streams.a);
    }
    on(streams.a, [&] { slot.fill_(turn); });
    Streams::order(streams.a, streams.b);
    on(streams.b, [&] { sum.add_(slot); });
  }
}

/// A block that goes back to its stream while another one reads it.
void free_while_read(const Streams& streams, bool records, bool orders) {
  at::Tensor sum = device_zeros();
  at::Tensor block = on(streams.a, [&] { return torch::ones({kNumel}, sum.options()); });
  Streams::order(streams.a, streams.b);
  if (records) {
    block.record_stream(streams.b);
  }
  on(streams.b, [&] { sum.add_(block); });
  if (orders) {
    Streams::order(streams.b, streams.a);
  }
  block.reset();
  on(streams.a, [&] { torch::ones({kNumel}, sum.options()); });
}

std::vector<Program> programs() {
  std::vector<Program> all;
  const auto add = [&](std::string name, std::vector<std::string> reported,
                       std::function<void(Streams)> run) {
    all.push_back(
        {.name = std::move(name), .run = std::move(run), .reported = std::move(reported)});
  };
  // Planted.
  add("ReadBeforeWrite", {"aten::add", "reads", "aten::fill_", "writes"}, [](const Streams& s) {
    at::Tensor x = device_zeros(), y = device_zeros();
    on(s.a, [&] { x.fill_(1); });
    on(s.b, [&] { y.add_(x); });
  });
  add("WriteBeforeRead", {"aten::fill_", "writes", "aten::add", "reads"}, [](const Streams& s) {
    at::Tensor x = device_zeros(), y = device_zeros();
    on(s.a, [&] { y.add_(x); });
    on(s.b, [&] { x.fill_(1); });
  });
  add("TwoWrites", {"aten::fill_", "aten::mul"}, [](const Streams& s) {
    at::Tensor x = device_zeros();
    on(s.a, [&] { x.fill_(1); });
    on(s.b, [&] { x.mul_(2); });
  });
  add("PartsThatShareFourBytes", {"on 4 bytes"}, [](const Streams& s) {
    at::Tensor x = device_zeros();
    on(s.a, [&] { x.narrow(0, 0, 33).fill_(1); });
    on(s.b, [&] { x.narrow(0, 32, 32).fill_(2); });
  });
  add("EventRecordedTooEarly", {"aten::fill_"}, [](const Streams& s) {
    at::Tensor x = device_zeros(), y = device_zeros();
    const c10::Event event = Streams::record(s.a);
    on(s.a, [&] { x.fill_(1); });
    s.b.wait(event);
    on(s.b, [&] { y.add_(x); });
  });
  add("AnotherStreamWaits", {"aten::fill_"}, [](const Streams& s) {
    at::Tensor x = device_zeros(), y = device_zeros();
    on(s.a, [&] { x.fill_(1); });
    Streams::order(s.a, Streams::main());
    on(s.b, [&] { y.add_(x); });
  });
  add("SlotFilledWhileItIsRead", {"aten::fill_", "aten::add"},
      [](const Streams& s) { use_ring(s, false); });
  add("BlockReusedWhileItIsRead", {"freed and handed out again"},
      [](const Streams& s) { free_while_read(s, false, false); });
  add("ViewOfFreedMemory", {"freed, or no device memory"}, [](const Streams&) {
    at::Tensor block = device_zeros(16 * kNumel);  // which the result will not get
    const at::Tensor view =
        at::from_blob(block.data_ptr(), {kNumel}, at::TensorOptions(sim::device()));
    block.reset();
    view.sum();
  });
  add("PinnedMemoryReadWhileItIsFilled", {"reads, host", "copy"}, [](const Streams&) {
    at::Tensor host = pinned_ones(), x = device_zeros();
    host.copy_(x, /*non_blocking=*/true);
    host.sum();
  });
  add("PinnedMemoryWrittenWhileItIsSent", {"writes, host", "copy"}, [](const Streams&) {
    at::Tensor host = pinned_ones(), x = device_zeros();
    x.copy_(host, /*non_blocking=*/true);
    host.fill_(2);
  });
  add("GradientReadOnAnotherStream", {"reads", "writes"}, [](const Streams& s) {
    at::Tensor x = device_zeros().requires_grad_(), y = device_zeros();
    x.square().sum().backward();
    on(s.b, [&] { y.add_(x.grad()); });
  });
  // Right.
  add("Event", {}, [](const Streams& s) {
    at::Tensor x = device_zeros(), y = device_zeros();
    on(s.a, [&] { x.fill_(1); });
    Streams::order(s.a, s.b);
    on(s.b, [&] { y.add_(x); });
  });
  add("EventThatIsRecordedAgain", {}, [](const Streams& s) {
    at::Tensor x = device_zeros(), y = device_zeros();
    c10::Event event = Streams::record(s.a);
    on(s.a, [&] { x.fill_(1); });
    event.record(s.a);
    s.b.wait(event);
    on(s.b, [&] { y.add_(x); });
  });
  add("HostWait", {}, [](const Streams& s) {
    at::Tensor x = device_zeros(), y = device_zeros();
    on(s.a, [&] { x.fill_(1); });
    s.a.synchronize();
    on(s.b, [&] { y.add_(x); });
  });
  add("ByWayOfAThirdStream", {}, [](const Streams& s) {
    at::Tensor x = device_zeros(), y = device_zeros();
    on(s.a, [&] { x.fill_(1); });
    Streams::order(s.a, Streams::main());
    Streams::order(Streams::main(), s.b);
    on(s.b, [&] { y.add_(x); });
  });
  add("PartsThatShareNothing", {}, [](const Streams& s) {
    at::Tensor x = device_zeros();
    on(s.a, [&] { x.narrow(0, 0, 32).fill_(1); });
    on(s.b, [&] { x.narrow(0, 32, 32).fill_(2); });
  });
  add("AnItemOrdersAll", {}, [](const Streams& s) {
    at::Tensor x = device_zeros();
    on(s.a, [&] { x.fill_(1).sum().item<float>(); });
    on(s.b, [&] { x.fill_(2); });
  });
  add("RingWithEventsBothWays", {}, [](const Streams& s) { use_ring(s, true); });
  add("ReuseOnOneStream", {}, [](const Streams& s) {
    on(s.a, [&] {
      for (int i = 0; i < 3; ++i) {
        torch::ones({kNumel}, at::TensorOptions(sim::device())).sum();
      }
    });
  });
  add("RecordStream", {}, [](const Streams& s) { free_while_read(s, true, false); });
  add("FreedAfterAnEvent", {}, [](const Streams& s) { free_while_read(s, false, true); });
  add("PinnedMemoryReadAfterItsEvent", {}, [](const Streams& s) {
    at::Tensor host = pinned_ones(), x = device_zeros();
    on(s.a, [&] { host.copy_(x, /*non_blocking=*/true); });
    Streams::record(s.a).synchronize();
    EXPECT_EQ(host.sum().item<float>(), 0);
  });
  add("PinnedMemoryFreedWhileItIsSent", {}, [](const Streams&) {
    at::Tensor x = device_zeros();
    for (int i = 0; i < 3; ++i) {
      x.copy_(pinned_ones(), /*non_blocking=*/true);
    }
  });
  add("BlockingCopies", {}, [](const Streams&) {
    at::Tensor host = pinned_ones();
    at::Tensor x = host.to(sim::device());
    host.fill_(3);
    EXPECT_EQ(x.cpu().sum().item<float>(), kNumel);
  });
  add("BackwardCalledFromAnotherStream", {}, [](const Streams& s) {
    at::Tensor x = device_zeros().requires_grad_();
    Streams::order(Streams::main(), s.a);
    at::Tensor loss = on(s.a, [&] { return x.square().sum(); });
    Streams::order(s.a, Streams::main());
    loss.backward();
    x.grad().sum().item<float>();
  });
  add("CopyBetweenDevices", {}, [](const Streams&) {
    at::Tensor there = device_zeros().add(1).to(sim::device(1)).mul(2);
    EXPECT_EQ(there.to(sim::device(0)).sum().item<float>(), 2 * kNumel);
  });
  return all;
}

class Races : public testing::TestWithParam<Program> {
 protected:
  static void SetUpTestSuite() { sim::start({.mode = sim::mode_of_environment()}); }
};

TEST_P(Races, AreReportedAndNothingElse) {
  for (int device = 0; device < 2; ++device) {
    Streams::guard().synchronizeDevice(static_cast<c10::DeviceIndex>(device));
  }
  sim::take_reports();
  GetParam().run(Streams());
  Streams::guard().synchronizeDevice(0);
  std::vector<std::string> texts;
  for (const sim::Report& report : sim::take_reports()) {
    texts.push_back(report.text);
  }
  if (GetParam().reported.empty()) {
    EXPECT_THAT(texts, testing::IsEmpty());
    return;
  }
  ASSERT_FALSE(texts.empty());
  for (const std::string& part : GetParam().reported) {
    EXPECT_THAT(texts.front(), testing::HasSubstr(part));
  }
}

INSTANTIATE_TEST_SUITE_P(Programs, Races, testing::ValuesIn(programs()),
                         [](const auto& info) { return info.param.name; });

/// Reports of device 1 that copies into pinned memory which device 0's thread has sent, waited for
/// or not, and freed.
std::vector<sim::Report> reports_of_pinned_memory_between_threads(bool waits) {
  sim::start();
  sim::take_reports();
  const void *sent = nullptr, *filled = nullptr;
  const auto as_bytes = [] {
    return at::empty({3 << 10}, at::TensorOptions(at::kByte).pinned_memory(true));
  };
  std::thread([&] {
    Streams::guard().setDevice(sim::device(0));
    const at::Tensor host = as_bytes();
    sent = host.const_data_ptr();
    sim::launch("send", 1, {{.begin = sent, .bytes = host.nbytes(), .writes = false}}, [] {});
    if (waits) {
      Streams::guard().synchronizeDevice(0);
    }
  }).join();
  std::thread([&] {
    Streams::guard().setDevice(sim::device(1));
    const at::Tensor host = as_bytes();
    filled = host.const_data_ptr();
    sim::launch("fill", 17, {{.begin = filled, .bytes = host.nbytes(), .writes = true}}, [] {});
    Streams::guard().synchronizeDevice(1);
  }).join();
  Streams::guard().synchronizeDevice(0);
  EXPECT_EQ(sent, filled) << "the block was to be handed on";
  return sim::take_reports();
}

TEST(SimDevice, PinnedMemoryThatAThreadFreesAfterAWaitIsFreeForAThreadOfAnotherDevice) {
  EXPECT_TRUE(reports_of_pinned_memory_between_threads(true).empty());
  EXPECT_EQ(reports_of_pinned_memory_between_threads(false).size(), 1U);
}

TEST(SimDevice, ASecondRankOnADeviceIsRefusedAndNamesTheFirst) {
  sim::start();
  const sim::Claim first(3, 0);
  try {
    const sim::Claim second(3, 1);
    FAIL() << "two ranks on one device";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("rank 1 asks for sim:3"),
                                             testing::HasSubstr("which rank 0")));
  }
  EXPECT_THROW(sim::Claim(8, 1), c10::Error);
}

TEST(SimDevice, ADeviceGivenBackIsThereForAnother) {
  sim::start();
  {
    const sim::Claim first(4, 0);
  }
  const sim::Claim second(4, 1);
  EXPECT_EQ(Streams::guard().getDevice(), sim::device(4));
}

TEST(SimDevice, AnAccessOfTheHostEndsTheProcessWithABacktrace) {
  EXPECT_DEATH(
      {
        sim::start();
        const at::Tensor x = torch::ones({4}, at::TensorOptions(sim::device()));
        *x.mutable_data_ptr<float>() = 1;
      },
      "the host touched device memory");
}

TEST(SimDevice, MoreThanItsMemoryIsRefused) {
  sim::start();
  sim::limit_memory(5, 4096);
  const auto options = at::TensorOptions(sim::device(5));
  at::Tensor half = torch::empty({512}, options);
  EXPECT_THROW(torch::empty({1024}, options), c10::OutOfMemoryError);
  half.reset();
  EXPECT_EQ(torch::empty({1024}, options).numel(), 1024);
  sim::limit_memory(5, sim::kBytesPerDevice);
}

TEST(SimDevice, HostWaitsAndKernelsAreCountedByDevice) {
  sim::start();
  at::Tensor x = torch::ones({4}, at::TensorOptions(sim::device(6)));
  sim::take_counts(6);
  x.add_(1);
  EXPECT_EQ(sim::take_counts(6).host_waits, 0);
  x.sum().item<float>();
  EXPECT_EQ(sim::take_counts(6).host_waits, 1);
  EXPECT_EQ(sim::take_counts(7).kernels, 0);
}

}  // namespace
}  // namespace fsdp::test
