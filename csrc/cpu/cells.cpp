// Places the cells of a compander's thresholds (cells.h).
#include "cpu/cells.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace lynx::cpu {
namespace {

// 1 / b, where the thresholds t[0 .. n - 1] plus b are as near to a geometric series as three of them tell.
float gain_of(const float* t, int64_t n) {
  const int64_t middle = (n - 1) / 2;
  const double first = t[0], mid = t[middle], last = t[2 * middle];
  const double bend = std::max(first + last - 2 * mid, 1e-300);
  return static_cast<float>(1 / std::clamp((mid * mid - first * last) / bend, 1e-9 * last, 64 * last));
}

// Lays the cells out over 0 .. limit; false if two of the n thresholds share one, or are too small to scale.
bool place(Cells& cells, int64_t n, float gain) {
  cells.gain = gain;
  const float reach =
      gain == 0.0f ? cells.limit : static_cast<float>(bits_of(1.0f + gain * cells.limit) - 0x3f800000u);
  cells.density = (Cells::kCells << Cells::kBits) * (1 - 0x1p-20f) / reach;
  if (!std::isfinite(cells.density)) return false;
  int64_t passed = 0;
  for (int32_t cell = 0; cell < Cells::kCells; ++cell) {
    const auto here = static_cast<int32_t>(passed << Cells::kBits);
    int32_t within = Cells::kWithin, held = 0;
    for (; passed < n; ++passed, ++held) {
      const int32_t at = position(cells, bits_of(cells.next[passed]));
      if (at >> Cells::kBits != cell) break;
      within = at & Cells::kWithin;
    }
    if (held > 1) return false;
    cells.entry[cell] = static_cast<uint16_t>(here + Cells::kWithin - within);
  }
  return true;
}

}  // namespace

std::optional<Cells> make_cells(const float* thresholds, int64_t n) {
  const int64_t passed = n / 2;
  const float* t = thresholds + n - passed;
  if (passed < 3 || passed > Cells::kMost || !(t[0] > 0.0f) || !std::isfinite(t[passed - 1])) return {};
  if (n % 2 && bits_of(thresholds[passed]) != 0) return {};
  for (int64_t i = 0; i < passed; ++i)
    if (thresholds[passed - 1 - i] != -t[i] || (i > 0 && !(t[i - 1] < t[i]))) return {};

  Cells cells{};
  cells.limit = t[passed - 1] * 1.0625f;
  cells.sign_magnitude = n % 2;
  std::fill_n(cells.next, std::size(cells.next), std::numeric_limits<float>::quiet_NaN());
  std::copy_n(t, passed, cells.next);
  if (place(cells, passed, 0.0f) || place(cells, passed, gain_of(t, passed))) return cells;
  return {};
}

}  // namespace lynx::cpu
