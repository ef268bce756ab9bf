// SPDX-License-Identifier: Apache-2.0
/// Everything a training program needs.
#pragma once

#include "fsdp/base/error.hpp"
#include "fsdp/comm/agreement.hpp"
#include "fsdp/comm/communicator.hpp"
#include "fsdp/comm/mean.hpp"
#include "fsdp/comm/world.hpp"
#include "fsdp/engine/deferred_init.hpp"
#include "fsdp/engine/fully_shard.hpp"
#include "fsdp/engine/recompute.hpp"
#include "fsdp/optim/adamw.hpp"
#include "fsdp/optim/clip.hpp"
#include "fsdp/optim/ema.hpp"
#include "fsdp/optim/finite.hpp"
#include "fsdp/optim/groups.hpp"
#include "fsdp/optim/lion.hpp"
#include "fsdp/optim/loss.hpp"
#include "fsdp/optim/loss_scaler.hpp"
#include "fsdp/optim/muon.hpp"
#include "fsdp/optim/sgd.hpp"
#include "fsdp/optim/whole_tensors.hpp"
