// SPDX-License-Identifier: Apache-2.0
/// Which device a rank computes on, and which transport that brings, on machines without one but
/// the simulated ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <cstdlib>
#include <string>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm/device/device_identity.hpp"
#include "comm/device/rank_device.hpp"
#include "comm/transport_table.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/comm/transports.hpp"
#include "fsdp/comm/world.hpp"
#include "ranks/transport_harness.hpp"
#include "support/error_of.hpp"
#include "support/sim/sim.hpp"

namespace fsdp {
namespace {

using comm::detail::choose_device;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

base::RankEnvironment rank(int local_rank, int local_size) {
  return {.rank = 10 + local_rank, .size = 100, .local_rank = local_rank, .local_size = local_size};
}

TEST(DeviceChoice, Fault126_ARanksDeviceIsThatOfItsNumberOnItsHost) {
  EXPECT_EQ(choose_device("sim", rank(3, 8), false).device, test::sim::device(3));
  EXPECT_EQ(choose_device("auto", rank(7, 8), false).device, test::sim::device(7));
  EXPECT_EQ(choose_device("sim:2", rank(7, 8), false).device, test::sim::device(2));
  EXPECT_TRUE(choose_device("cpu", rank(7, 8), false).device.is_cpu());
}

TEST(DeviceChoice, Fault126_MoreRanksThanDevicesShareThemOnlyWhereTheyMay) {
  EXPECT_THAT(test::error_of([] { choose_device("sim", rank(9, 10), false); }),
              AllOf(HasSubstr("[invalid argument] rank 19 is the 10. of its host"),
                    HasSubstr("8 of kind sim are visible"), HasSubstr("transport staged")));
  EXPECT_EQ(choose_device("sim", rank(9, 10), true).device, test::sim::device(1));
  EXPECT_THAT(test::error_of([] { choose_device("sim:8", rank(0, 1), false); }),
              AllOf(HasSubstr("device sim:8 is not there"), HasSubstr("8 of kind sim")));
}

TEST(DeviceChoice, WhatIsNotThereOrNoDeviceIsSaid) {
  EXPECT_THAT(test::error_of([] { choose_device("cuda", rank(0, 1), false); }),
              AllOf(HasSubstr("[unsupported] device cuda:"),
                    testing::AnyOf(HasSubstr("is built without cuda"),
                                   HasSubstr("no device of kind cuda was found"))));
  EXPECT_THAT(test::error_of([] { comm::check_device("cuda:1"); }), HasSubstr("[unsupported]"));
  EXPECT_NO_THROW(comm::check_device("auto"));
  for (const char* word : {"gpu", "cuda:x", "meta", "", "cpu:1:2"}) {
    EXPECT_THAT(test::error_of([&] { comm::check_device_word(word); }),
                HasSubstr("must be auto, cpu, cuda, cuda:N"))
        << word;
  }
}

/// The errors, or the names of transports, of ranks on threads that meet in one store.
std::array<std::string, 2> connect(const std::string& wish, std::array<int, 2> devices) {
  std::array<std::string, 2> said;
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const auto at = static_cast<std::size_t>(r);
      const comm::detail::Site site({.rank = r, .size = 2, .local_rank = r, .local_size = 2},
                                    {.store = store, .master_address = "127.0.0.1"}, wish,
                                    std::chrono::seconds(10),
                                    std::vector<std::string>{"here", "here"});
      const c10::Device device = test::sim::device(devices[at]);
      const std::string error = test::error_of([&] {
        const comm::Link link = comm::detail::connect(site.on(device));
        const auto options = at::TensorOptions(at::kFloat).device(device);
        at::Tensor all = at::zeros({2}, options);
        link.transport->all_gather(all, at::ones({1}, options), {.name = "probe"})->wait();
        EXPECT_EQ(all.to(at::kCPU).sum().item<double>(), 2);
        link.job->barrier({.name = "end"});
        said[at] = link.transport->traits().name;
      });
      said[at] = error == "no error" ? said[at] : error;
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return said;
}

TEST(DeviceChoice, AutoTakesNcclAndNamesTakeTheirs) {
  EXPECT_THAT(connect("auto", {0, 1}), Each(HasSubstr("nccl")));
  EXPECT_THAT(connect("nccl", {0, 1}), Each(HasSubstr("nccl")));
  EXPECT_THAT(connect("staged", {0, 1}), Each(HasSubstr("staged")));
  EXPECT_THAT(connect("shm", {0, 1}), Each(HasSubstr("staged")));
}

TEST(DeviceChoice, Fault126_TwoRanksOnOneDeviceAreAnErrorUnlessTheyAskForCopies) {
  for (const char* wish : {"auto", "nccl"}) {
    EXPECT_THAT(connect(wish, {4, 4}),
                Each(AllOf(HasSubstr("[invalid argument] ranks 0 and 1 are both on sim:4"),
                           HasSubstr("transport staged"))));
  }
  EXPECT_THAT(connect("staged", {4, 4}), Each(HasSubstr("staged")));
}

TEST(DeviceChoice, WithoutNcclAutoWarnsAndStagesAndTheNameIsAnErrorOnAllRanks) {
  const std::string stand_in = std::getenv("FSDP_NCCL");
  ::setenv("FSDP_NCCL", "/nowhere/libnccl.so.2", 1);
  testing::internal::CaptureStderr();
  const auto names = connect("auto", {0, 1});
  const std::string written = testing::internal::GetCapturedStderr();
  const auto errors = connect("nccl", {0, 1});
  ::setenv("FSDP_NCCL", stand_in.c_str(), 1);
  EXPECT_THAT(names, Each(HasSubstr("staged")));
  EXPECT_THAT(written, AllOf(HasSubstr("transport nccl cannot run on rank 0"),
                             HasSubstr("/nowhere"), HasSubstr("slow")));
  EXPECT_EQ(std::count(written.begin(), written.end(), '\n'), 1) << written;
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr("[unsupported] transport nccl"), HasSubstr("/nowhere"))));
}

TEST(DeviceChoice, ATransportOfADeviceNeedsOne) {
  const comm::detail::Site site({}, {}, "nccl", std::chrono::seconds(1));
  EXPECT_THAT(test::error_of([&] { comm::detail::connect(site); }),
              AllOf(HasSubstr("transport nccl"), HasSubstr("compute on the CPU")));
}

TEST(DeviceChoice, OneRankAloneGetsItsDeviceAndWhatFsdpDeviceSays) {
  ::setenv("FSDP_DEVICE", "sim:6", 1);
  const World world = init();
  ::unsetenv("FSDP_DEVICE");
  EXPECT_EQ(world.device(), test::sim::device(6));
  EXPECT_EQ(c10::impl::getDeviceGuardImpl(c10::DeviceType::PrivateUse1)->getDevice(),
            world.device());
  EXPECT_EQ(world.transport().traits().waits, comm::Waits::kStream);
  const auto options = at::TensorOptions(at::kFloat).device(world.device());
  at::Tensor sum = at::ones({3}, options);
  world.transport()
      .reduce_scatter(sum, at::full({3}, 6, options), {.divisor = 3, .accumulate = true}, {})
      ->wait();
  EXPECT_EQ(sum.to(at::kCPU).sum().item<double>(), 9);
  EXPECT_TRUE(init({.device = "cpu"}).device().is_cpu());
}

}  // namespace
}  // namespace fsdp
