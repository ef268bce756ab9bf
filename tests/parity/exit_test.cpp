// SPDX-License-Identifier: Apache-2.0
/// Ends: of a process with collectives in flight, of the objects in any order, and of models that
/// live beside each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/fsdp.hpp"
#include "support/all_transports.hpp"
#include "support/error_of.hpp"
#include "support/four_layers.hpp"
#include "support/subjects.hpp"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

/// What a training program holds.
struct Job {
  std::optional<World> world;
  std::shared_ptr<FourLayers> model = std::make_shared<FourLayers>();
  std::optional<Sharded> sharded;
  std::optional<torch::optim::AdamW> optimizer;
  at::Tensor output;

  explicit Job(World world_in) : world(world_in) {
    sharded.emplace(fully_shard(model, world_in, test_options(units_of<nn::Linear>(), 0, 2)));
    optimizer.emplace(sharded->parameters(), torch::optim::AdamWOptions(1e-3));
    for (int step = 0; step < 2; ++step) {
      model->loss(input(world_in.rank(), step)).backward();
      optimizer->step();
      optimizer->zero_grad();
    }
    // From the recorded order the next two units are on their way.
    output = model->layers[0](input(world_in.rank(), 2));
  }
  void end(int which) {
    switch (which) {
      case 0: world.reset(); break;
      case 1: model.reset(); break;
      case 2: sharded.reset(); break;
      case 3: optimizer.reset(); break;
      default: output.reset();
    }
  }
};

/// Every rank ends its process by `end`; it must have that code, soon.
void expect_code(int code, const std::function<void(int rank)>& end) {
  const auto results = run_processes(2, "exit", end, {.environment = {{"FSDP_TIMEOUT", "20"}}});
  for (const ProcessResult& result : results) {
    EXPECT_EQ(result.exit_code, code) << result.output;
    EXPECT_FALSE(result.killed_by_test);
    EXPECT_LT(result.duration, in_time(std::chrono::seconds(15)));
  }
}

TEST(Exit, Fault008_WithGathersInFlightAProcessKeepsItsOwnCode) {
  expect_code(7, [](int) {
    const Job job(init());
    std::exit(7);  // job is not destroyed
  });
}

TEST(Exit, Fault008_StaticObjectsMayOutliveMain) {
  expect_code(0, [](int) {
    static const Job job(init());
    std::exit(0);
  });
}

TEST(Exit, Fault008_OneRankMayLeaveFirst) {
  expect_code(3, [](int rank) {
    const auto job = std::make_unique<Job>(init());
    if (rank == 0) {
      std::exit(3);
    }
    EXPECT_NE(error_of([&] {
                for (int step = 0; step < 3; ++step) {
                  job->model->loss(input(rank, step)).backward();
                }
              }),
              "no error");
    std::exit(3);
  });
}

TEST(Exit, Fault008_ObjectsEndInAnyOrder) {
  on_all_transports(2, 20, [](World world) {
    std::array<int, 5> order = {0, 1, 2, 3, 4};
    do {
      Job job(world);
      for (int which : order) {
        job.end(which);
      }
      world.barrier();  // the ranks understand each other as before
    } while (std::next_permutation(order.begin(), order.end()));
  });
}

/// A student learns what its teacher says; both are sharded, over one group.
std::vector<at::Tensor> learn(FourLayers& teacher, FourLayers& student,
                              torch::optim::Optimizer& optimizer, int first, int last) {
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad(/*set_to_none=*/true);
    at::Tensor sum = torch::zeros({}, torch::kDouble);
    for (int rank = first; rank < last; ++rank) {
      at::Tensor said;
      {
        torch::NoGradGuard no_grad;
        said = teacher.forward(input(rank, step));
      }
      // Layer by layer in turns: the two models' gathers interleave.
      at::Tensor x = input(rank, step);
      for (std::size_t layer = 0; layer < student.layers.size(); ++layer) {
        torch::NoGradGuard no_grad;
        said = said + teacher.layers[layer](said) * 0.1;
        torch::AutoGradMode with_grad(true);
        x = torch::tanh(student.layers[layer](x));
      }
      sum = sum + (x * student.scale - said).square().mean();
    }
    (sum / (last - first)).backward();
    optimizer.step();
  }
  return student.parameters();
}

void set_weights(FourLayers& model, double phase) {
  torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : model.parameters()) {
    const at::Tensor steps = torch::arange(parameter.numel(), torch::kDouble);
    parameter.copy_((steps * 0.7 + ++phase).sin().mul(0.6).view(parameter.sizes()));
  }
}

TEST(Models, ATeacherAndItsStudentShareOneGroup) {
  on_all_transports(2, 20, [](World world) {
    FourLayers plain_teacher, plain_student;
    set_weights(plain_teacher, 1);
    set_weights(plain_student, 2);
    const auto plain = sgd_with_momentum()(plain_student.parameters());
    const auto expected = learn(plain_teacher, plain_student, *plain, 0, 2);

    const auto teacher = std::make_shared<FourLayers>();
    const auto student = std::make_shared<FourLayers>();
    set_weights(*teacher, 1);
    set_weights(*student, 2);
    const Sharded teaching = fully_shard(teacher, world, test_options(units_of<nn::Linear>()));
    const Sharded learning = fully_shard(student, world, test_options(units_of<nn::Linear>()));
    const auto optimizer = sgd_with_momentum()(learning.parameters());
    learn(*teacher, *student, *optimizer, world.rank(), world.rank() + 1);
    const auto full = learning.full_parameters();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LE((student->parameters()[i] - expected[i]).abs().max().item<double>(), 1e-12) << i;
    }
  });
}

}  // namespace
}  // namespace fsdp::test
