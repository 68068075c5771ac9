// Cycles of instructions: a public cost table, generation unsure. Nothing here was measured on an NPU.
#pragma once
#include <type_traits>

#include "twin/types.h"

namespace twin::cost {

constexpr double kClockHz = 1.5e9;        // 8.1's platform description of Ascend 910B4
constexpr double kInstruction = 20;       // per vector instruction, beside its repeats
constexpr double kDmaBytesPerCycle = 10;  // per core and direction, with all cores busy

// Per repeat of 256 bytes.
constexpr double kVectorScalar = 0.9;  // in the table: Adds, Muls
constexpr double kVectorVector = 1.4;  // in the table: Add, Sub, Mul, Max
constexpr double kGather = 24;         // per 128 elements
template <class T>
constexpr double kDiv = std::is_same_v<T, float> ? 2.9 : 5.9;

// Not in the table, taken for like its neighbours: one vector operand (Cast, Duplicate, Abs, shifts, Maxs,
// Mins, CompareScalar, Select with a scalar) as Adds; two (Min, And, Or) as Add. Scalar
// reads and writes, flags, barriers and the issue of instructions cost nothing here.

}  // namespace twin::cost
