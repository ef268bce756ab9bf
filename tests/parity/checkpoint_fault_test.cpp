// SPDX-License-Identifier: Apache-2.0
/// What goes wrong around checkpoints: on every rank, with the reason, and nothing is lost.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "fsdp/archive/listing.hpp"
#include "fsdp/archive/reader.hpp"
#include "parity/checkpoint_support.hpp"
#include "support/error_of.hpp"
#include "support/processes.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace nn = torch::nn;

/// Weights of given names and shapes, each used in forward.
struct Named : nn::Module {
  explicit Named(const std::vector<std::pair<std::string, std::vector<std::int64_t>>>& weights) {
    for (const auto& [name, shape] : weights) {
      register_parameter(name, torch::ones(shape, torch::kDouble));
    }
  }
};

Sharded shard(const std::vector<std::pair<std::string, std::vector<std::int64_t>>>& weights,
              const World& world) {
  return fully_shard(std::static_pointer_cast<nn::Module>(std::make_shared<Named>(weights)), world,
                     test_options({}));
}

void save(Sharded sharded, const std::string& directory, std::int64_t step) {
  checkpoint::Saver saver(directory, std::move(sharded));
  saver.save(step);
  saver.wait();
}

TEST(CheckpointFaultTest, Fault158_ADirectoryInUseIsRefusedBeforeTheFirstStep) {
  const test::TemporaryDirectory directory;
  const std::string root = directory.path("run");
  run_threads(1, [&](World world) {
    torch::nn::Linear model(3, 2);
    const Sharded sharded = fully_shard(model, world, {.debug = {.print_promise = false}});
    checkpoint::Saver first(root, sharded), second(root, sharded);
    first.claim(0);
    EXPECT_THAT(test::error_of([&] { second.claim(0); }),
                HasSubstr("another run saves to '" + root + "'"));
    // Moved away: what is made in its place is this run's as well.
    std::filesystem::rename(root, directory.path("elsewhere"));
    first.save(1);
    first.wait();
    EXPECT_THAT(test::error_of([&] { second.claim(0); }), HasSubstr("another run saves to"));
  });
  EXPECT_TRUE(archive::latest_checkpoint(root).found.has_value());
}

TEST(CheckpointFaultTest, Fault108_StrictNamesEverythingInOneMessageAndLaxReturnsIt) {
  const TemporaryDirectory directory;
  run_threads(2, [&](World world) {
    save(shard({{"both", {3}}, {"dropped", {2}}, {"shape", {2, 3}}}, world), directory.path(), 1);
    Sharded other = shard({{"added", {4}}, {"both", {3}}, {"shape", {3, 2}}}, world);
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& part : other.parameters()) {
      part.fill_(5);
    }
    EXPECT_THAT(error_of([&] { checkpoint::load(directory.path(), other); }),
                AllOf(HasSubstr("missing in the file: added"),
                      HasSubstr("in the file but not here: dropped"),
                      HasSubstr("shape: F64 [2, 3] in the file, [3, 2] here")));
    for (const at::Tensor& part : other.parameters()) {
      EXPECT_TRUE(part.eq(5).all().item<bool>()) << "nothing was loaded";
    }
    const auto report = checkpoint::load(directory.path(), other, nullptr, {.strict = false});
    EXPECT_THAT(report.missing, ElementsAre("added"));
    EXPECT_THAT(report.unexpected, ElementsAre("dropped"));
    EXPECT_THAT(report.mismatched, ElementsAre("shape: F64 [2, 3] in the file, [3, 2] here"));
    EXPECT_EQ(report.entries, 1);
    for (const NamedShard& part : other.named_parameters()) {
      EXPECT_TRUE(part.shard.eq(part.name == "both" ? 1 : 5).all().item<bool>()) << part.name;
    }
  });
}

TEST(CheckpointFaultTest, Fault109_ShapesThatWouldBroadcastAreRefused) {
  using Shape = std::vector<std::int64_t>;
  for (const auto& pair : {std::pair(Shape{1, 4}, Shape{4, 4}), std::pair(Shape{1}, Shape{}),
                           std::pair(Shape{4}, Shape{1, 4})}) {
    const TemporaryDirectory directory;
    run_threads(2, [&](World world) {
      save(shard({{"w", pair.first}}, world), directory.path(), 1);
      Sharded other = shard({{"w", pair.second}}, world);
      EXPECT_THAT(error_of([&] { checkpoint::load(directory.path(), other); }),
                  HasSubstr("of another shape: w: F64 ["));
    });
  }
}

TEST(CheckpointFaultTest, Fault062_AScalarAndATensorWithoutElementsComeBackAsTheyWere) {
  const TemporaryDirectory directory;
  run_threads(3, [&](World world) {
    save(shard({{"none", {0, 3}}, {"scalar", {}}, {"w", {2}}}, world), directory.path(), 1);
    Sharded other = shard({{"none", {0, 3}}, {"scalar", {}}, {"w", {2}}}, world);
    EXPECT_EQ(checkpoint::load(directory.path(), other).entries, 3);
  });
  const archive::Checkpoint saved(archive::resolve_checkpoint(directory.path()));
  EXPECT_THAT(saved.index().find(archive::Section::kModel, "scalar")->shape, IsEmpty());
}

struct Permuted : nn::Module {
  Permuted()
      : turned(register_parameter("turned", torch::randn({4, 6}).t().clone())),
        image(register_parameter(
            "image", torch::randn({4, 3, 5, 2}).contiguous(at::MemoryFormat::ChannelsLast))),
        norm(register_module("norm", nn::BatchNorm1d(5))) {}
  at::Tensor turned, image;
  nn::BatchNorm1d norm;
};

TEST(CheckpointFaultTest, WeightsInAnotherMemoryOrderAndBuffersAreStoredLogically) {
  const TemporaryDirectory directory;
  for (int ranks : {1, 2, 5}) {
    run_threads(ranks, [&](World world) {
      static std::mutex mutex;
      std::shared_ptr<Permuted> model;
      at::Tensor turned, image;
      {
        const std::lock_guard lock(mutex);
        torch::manual_seed(3);
        model = std::make_shared<Permuted>();
        turned = model->turned.detach().clone();
        image = model->image.detach().clone();
      }
      model->norm->running_mean.fill_(7);
      Sharded sharded =
          fully_shard(std::static_pointer_cast<nn::Module>(model), world, test_options({}));
      save(sharded, directory.path(), ranks);
      const torch::NoGradGuard no_grad;
      for (const at::Tensor& part : sharded.parameters()) {
        part.fill_(0);
      }
      model->norm->running_mean.fill_(0);
      checkpoint::load(directory.path(), sharded);
      EXPECT_TRUE(model->norm->running_mean.eq(7).all().item<bool>());
      {
        const FullParameters full = sharded.full_parameters();
        EXPECT_TRUE(torch::equal(model->turned, turned));
        EXPECT_TRUE(torch::equal(model->image, image));
      }
      if (world.rank() == 0) {
        const archive::Checkpoint saved(archive::resolve_checkpoint(directory.path()));
        const auto* stored = saved.index().find(archive::Section::kModel, "turned");
        const at::Tensor read = torch::empty({6, 4});
        saved.read(*stored, 0, stored->bytes, read.data_ptr());
        EXPECT_TRUE(torch::equal(read, turned)) << "row-major in the file";
      }
    });
  }
}

TEST(CheckpointFaultTest, Fault103_AFailureOfOneRankIsThrownOnAllAndTheNextSaveWorks) {
  const TemporaryDirectory directory;
  const std::string root = directory.path("run");
  run_threads(3, [&](World world) {
    Sharded sharded = shard({{"w", {30}}}, world);
    checkpoint::Saver saver(root, sharded);
    saver.save(1);
    saver.wait();
    world.barrier();
    if (world.rank() == 0) {
      fs::rename(root, root + "-away");
      directory.write("run", "a file in its place");
    }
    world.barrier();
    const std::string text = error_of([&] {
      saver.save(2);
      saver.wait();
    });
    EXPECT_THAT(text, AllOf(HasSubstr("rank 0"), HasSubstr("cannot create"), HasSubstr(root)));
    world.barrier();
    if (world.rank() == 0) {
      fs::remove(root);
      fs::rename(root + "-away", root);
    }
    world.barrier();
    saver.save(3);
    saver.wait();
  });
  EXPECT_EQ(archive::latest_checkpoint(root).found.value().step, 3);
  EXPECT_EQ(archive::list_checkpoints(root).size(), 2u);
}

/// The system refuses this process to write files beyond `bytes`; without a limit when negative.
void limit_file_size(std::int64_t bytes) {
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  limit.rlim_cur = bytes < 0 ? limit.rlim_max : static_cast<rlim_t>(bytes);
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

TEST(CheckpointFaultTest, Fault106_NothingIsAnnouncedThatOneRankCouldNotWrite) {
  const TemporaryDirectory directory;
  // Only the parent's directory counts: each copy of the test makes one of its own.
  const std::vector<std::pair<std::string, std::string>> environment = {
      {"FSDP_TEST_ROOT", directory.path()}};
  const auto results = run_processes(
      2, "ranks",
      [](int rank) {
        const std::string root = std::getenv("FSDP_TEST_ROOT");
        const World world = init();
        Sharded sharded = shard({{"w", {4000}}}, world);
        checkpoint::Saver saver(root, sharded);
        saver.save(1);
        saver.wait();
        limit_file_size(rank == 1 ? 4096 : -1);
        saver.save(2);
        EXPECT_THAT(error_of([&] { saver.save(3); }),
                    AllOf(HasSubstr("rank 1: cannot write"), HasSubstr("File too large"),
                          HasSubstr("bytes needed"), HasSubstr("model.safetensors")));
        EXPECT_EQ(archive::latest_checkpoint(root).found.value().step, 1);
        world.barrier();
        limit_file_size(-1);
        saver.save(4);
        saver.wait();
      },
      {.environment = environment});
  for (const ProcessResult& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
  const auto all = archive::list_checkpoints(directory.path());
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1].step, 4);
  EXPECT_THAT(archive::verify_checkpoint(all[1].path), IsEmpty());
}

/// Joins four ranks as two hosts of two ranks each.
World init_on_two_hosts(int rank) {
  ::setenv("FSDP_HOST_ID", rank < 2 ? "first" : "second", 1);
  ::setenv("LOCAL_RANK", std::to_string(rank % 2).c_str(), 1);
  ::setenv("LOCAL_WORLD_SIZE", "2", 1);
  return init();
}

TEST(CheckpointFaultTest, Fault100_Fault104_LocalRanksOfTwoHostsSaveAndLoadTheirOwnShards) {
  const TemporaryDirectory directory;
  const auto results =
      run_processes(4, "ranks",
                    [](int rank) {
                      const World world = init_on_two_hosts(rank);
                      EXPECT_EQ(world.rank(), rank);
                      EXPECT_EQ(world.local_rank(), rank % 2);
                      CheckpointedRun run(odd_mlp(), world, test_options({}), adam());
                      run.train(2);
                      // The directories are made where needed, with nothing but the global rank to
                      // tell parts.
                      run.save(std::getenv("FSDP_TEST_ROOT") + std::string("/new/run"), 2);
                      const Snapshot saved = run.snapshot();
                      run.train(1);
                      run.load(std::getenv("FSDP_TEST_ROOT") + std::string("/new/run"));
                      expect_same_bits(run.snapshot(), saved);
                    },
                    {.environment = {{"FSDP_TEST_ROOT", directory.path()}}});
  for (const ProcessResult& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
  EXPECT_THAT(archive::verify_checkpoint(archive::resolve_checkpoint(directory.path("new/run"))),
              IsEmpty());
  Snapshot expected = train_reference(odd_mlp(), 1, adam(), 2);
  expected.first_gradients.clear();
  run_threads(1, [&](World world) {
    CheckpointedRun run(odd_mlp(), world, test_options({}), adam());
    run.load(directory.path("new/run"));
    expect_parity(run.snapshot(), expected);
  });
}

TEST(CheckpointFaultTest, Fault104_AHostThatSeesAnotherDirectoryIsNamedAtTheFirstSave) {
  const TemporaryDirectory first, second;
  run_threads(4, [&](World world) {
    const std::string root = (world.rank() < 2 ? first : second).path("run");
    Sharded sharded = shard({{"w", {30}}}, world);
    checkpoint::Saver saver(root, sharded);
    EXPECT_THAT(error_of([&] { saver.save(1); }),
                AllOf(HasSubstr("rank 2: '" + second.path("run")),
                      HasSubstr("a file system that they share")));
    saver.wait();
  });
  EXPECT_TRUE(fs::is_empty(first.path("run"))) << "the draft is gone";
}

TEST(CheckpointFaultTest, RanksThatSaveDifferentStepsAreTold) {
  const TemporaryDirectory directory;
  run_threads(2, [&](World world) {
    Sharded sharded = shard({{"w", {3}}}, world);
    checkpoint::Saver saver(directory.path(), sharded);
    EXPECT_THAT(error_of([&] { saver.save(1 + world.rank()); }),
                HasSubstr("rank 0 saves step 1, rank 1 saves step 2"));
    EXPECT_THAT(error_of([&] {
                  saver.save(1, {.values = {{"data", {{"next", std::int64_t{world.rank()}}}}}});
                }),
                HasSubstr("save different things at step 1"));
  });
}

TEST(CheckpointFaultTest, Fault110_AFlippedByteIsFoundAtLoadOnEveryRank) {
  const TemporaryDirectory directory;
  run_threads(3, [&](World world) {
    Sharded sharded = shard({{"v", {5}}, {"w", {7}}}, world);
    save(sharded, directory.path(), 1);
    world.barrier();
    const std::string path = archive::resolve_checkpoint(directory.path());
    if (world.rank() == 0) {
      const std::string file = path + "/model.safetensors";
      std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekp(static_cast<std::streamoff>(fs::file_size(file)) - 3);
      stream.put('!');
    }
    world.barrier();
    EXPECT_THAT(error_of([&] { checkpoint::load(path, sharded); }),
                AllOf(HasSubstr("is damaged"), HasSubstr("'w' in model.safetensors")));
    EXPECT_NO_THROW(checkpoint::load(path, sharded, nullptr, {.verify = false}));
  });
}

TEST(CheckpointFaultTest, Fault101_AllRanksTakeTheSameCompleteOne) {
  const TemporaryDirectory directory;
  run_threads(2, [&](World world) {
    Sharded sharded = shard({{"w", {7}}}, world);
    save(sharded, directory.path(), 1);
    save(sharded, directory.path(), 2);
    world.barrier();
    if (world.rank() == 0) {
      fs::remove(directory.path("step-00000002/checkpoint.json"));
    }
    world.barrier();
    EXPECT_EQ(checkpoint::load(directory.path(), sharded).step, 1);
    EXPECT_THAT(error_of([&] { checkpoint::load(directory.path("step-00000002"), sharded); }),
                HasSubstr("rank 0"));
  });
}

TEST(CheckpointFaultTest, ASaverThatEndsWithoutWaitStillCommits) {
  const TemporaryDirectory directory;
  run_threads(2, [&](World world) {
    Sharded sharded = shard({{"w", {7}}}, world);
    checkpoint::Saver saver(directory.path(), sharded);
    saver.save(1);
  });
  EXPECT_TRUE(archive::latest_checkpoint(directory.path()).found.has_value());
}

}  // namespace
}  // namespace fsdp::test
