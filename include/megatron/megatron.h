#pragma once

// The library for programs outside this repository: a CMake project finds it with
// find_package(megatron) and links megatron::megatron (docs/library.md).
#include "megatron/core/error.h"
#include "megatron/model.h"
#include "megatron/ranks.h"
#include "megatron/server.h"
#include "megatron/settings.h"
#include "megatron/task.h"
#include "megatron/tensor.h"
#include "megatron/trainer.h"
