// SPDX-License-Identifier: Apache-2.0
// Every state that a death can leave behind, for both kinds of durability: the store must find a committed step with
// its right bytes, and never one older than what it acknowledged. The store, the volumes and their queue are the real
// ones; only the disk below is a model (crash_device.h).
#include <gtest/gtest.h>

#include <set>

#include "crash_device.h"
#include "runtime/store/nvme_store.h"
#include "tests/io/io_test_support.h"
#include "tests/runtime/store_support.h"

namespace headrace::fault {
namespace {

using runtime::NvmeStore;
using runtime::text_of;

struct Model {
  io::Durability durability;
  std::size_t num_volumes;
};

void PrintTo(const Model& model, std::ostream* out) {
  *out << (model.durability == io::Durability::kPower ? "power" : "process") << model.num_volumes;
}

class CrashModel : public ::testing::TestWithParam<Model> {
 protected:
  using Device = std::shared_ptr<CrashDevice>;

  void SetUp() override {
    input_.tile_elements = 4096;
    input_.model.units = {runtime::make_store_unit("two", 4096 + 65, false)};
    for (std::size_t i = 0; i < GetParam().num_volumes; ++i)
      paths_.push_back(folder_.make_folder(std::string(1, static_cast<char>('a' + i))));
  }
  [[nodiscard]] Death death() const {
    return GetParam().durability == io::Durability::kPower ? Death::kPower : Death::kProcess;
  }
  [[nodiscard]] io::VolumeOptions options(const io::BackendSeam& seam, io::Durability durability) const {
    io::VolumeOptions result;
    result.mode = io::IoMode::kBuffered;
    result.durability = durability;
    result.seam = &seam;
    return result;
  }
  [[nodiscard]] runtime::ShardGeometry geometry() const { return runtime::ShardGeometry::of_state(input_, 2); }
  [[nodiscard]] static std::string row_of(std::uint64_t step) {
    return std::string(1500, static_cast<char>('a' + step));  // so that a record spans several sectors
  }

  // One step as the engine makes it.
  void make_step(NvmeStore& store, CrashDevice& device, std::uint64_t step, bool skipped = false) {
    if (!skipped) ASSERT_OK(runtime::store_version(input_, store, step));
    runtime::StepRecord record = store.committed();
    record.step = step;
    record.metrics_row = row_of(step);
    ASSERT_OK(store.commit_step(record, !skipped));
    device.acknowledge(step);
  }
  void make_first_session(const Device& device, std::uint64_t last_step) {
    const io::BackendSeam seam = crash_seam(device, 1);
    auto store = NvmeStore::create(paths_, "run", geometry(), options(seam, GetParam().durability));
    ASSERT_OK(store);
    device->record();
    for (std::uint64_t step = 0; step <= last_step; ++step) make_step(**store, *device, step, step == kSkipped);
  }
  void make_further_session(const Device& device, std::uint64_t seed, int steps) {
    const io::BackendSeam seam = crash_seam(device, seed);
    auto store = NvmeStore::open(paths_, "run", geometry(), options(seam, GetParam().durability));
    ASSERT_OK(store);
    device->record();
    for (int i = 0; i < steps; ++i) make_step(**store, *device, (*store)->committed().step + 1);
  }

  // Opens the store on an image. What it finds, or what is wrong with it.
  struct Found {
    std::optional<std::uint64_t> step;
    std::string fault;
    bool wrong_bytes = false;
  };
  Found recover(const Image& image) {
    const auto device = std::make_shared<CrashDevice>(image);
    const io::BackendSeam seam = crash_seam(device, 3);
    auto store = NvmeStore::open(paths_, "run", geometry(), options(seam, GetParam().durability));
    if (!store.ok()) return {std::nullopt, store.error().to_string(), false};
    const runtime::StepRecord& record = (*store)->committed();
    if (record.metrics_row != row_of(record.step)) return {record.step, "the row of another step", true};
    for (const runtime::TileId& id : runtime::tiles_of(input_, false)) {
      const runtime::TilePayload payload(input_, id);
      const runtime::TileMove move = payload.move();
      const auto loaded = runtime::wait_for((*store)->load({&move, 1}, record.state_version, {}));
      if (!loaded.ok()) return {record.step, loaded.error().to_string(), false};
      if (!payload.holds(record.state_version)) return {record.step, "other bytes", true};
    }
    return {record.step, "", false};
  }

  // All fates of all undecided writes at every instant from `from` on. Each different state is recovered once.
  void check_every_state(const History& history, std::size_t from, Death death, std::span<const Fate> fates) {
    std::map<std::map<std::size_t, Fate>, Found> known;
    for (std::size_t at = from; at <= history.now; ++at) {
      const std::vector<std::size_t> open = undecided(history, death, at);
      const auto [needed, possible] = bounds_at(history, at);
      std::vector<std::size_t> choice(open.size(), 0);
      for (bool more = true; more;) {
        std::map<std::size_t, Fate> key;  // every write begun: equal keys are equal disks
        for (std::size_t i = 0; i < history.writes.size(); ++i)
          if (history.writes[i].submitted <= at) key[i] = Fate::kWhole;
        for (std::size_t i = 0; i < open.size(); ++i) key[open[i]] = fates[choice[i]];
        std::erase_if(key, [](const auto& entry) { return entry.second == Fate::kNone; });
        auto [entry, is_new] = known.try_emplace(key);
        if (is_new) {
          for (const std::size_t i : open) key.try_emplace(i, Fate::kNone);
          entry->second = recover(image_after(history, at, key));
          ++num_states_;
        }
        judge(entry->second, needed, possible, at);
        if (HasFatalFailure()) return;
        more = false;
        for (std::size_t i = 0; i < choice.size() && !more; ++i) {
          more = ++choice[i] < fates.size();
          if (!more) choice[i] = 0;
        }
      }
    }
  }

  // The newest acknowledged step, and the newest that may be found.
  static std::pair<std::optional<std::uint64_t>, std::uint64_t> bounds_at(const History& history, std::size_t at) {
    std::optional<std::uint64_t> needed;
    std::uint64_t possible = 0;
    for (const Mark& mark : history.acknowledged) {
      possible = mark.version;
      if (mark.at > at) break;
      needed = mark.version;
    }
    return {needed, possible};
  }
  static void judge(const Found& found, std::optional<std::uint64_t> needed, std::uint64_t possible, std::size_t at) {
    if (!needed && !found.step) return;  // nothing was committed and nothing is found
    ASSERT_TRUE(found.step) << "at " << at << ": " << found.fault;
    ASSERT_EQ(found.fault, "") << "at " << at << ", step " << *found.step;
    ASSERT_LE(*found.step, possible) << "at " << at;
    ASSERT_GE(*found.step, needed.value_or(0)) << "at " << at << ": an acknowledged step was lost";
  }

  static constexpr std::uint64_t kSkipped = 2;  // a record without tiles
  static constexpr std::uint64_t kLast = 4;
  io::TestFolder folder_{std::filesystem::exists("/dev/shm") ? "/dev/shm" : "."};  // only superblocks are in real files
  runtime::PlanInput input_;
  std::vector<std::string> paths_;
  std::int64_t num_states_ = 0;
};

TEST_P(CrashModel, EveryStateOfOneSessionRecovers) {
  const auto device = std::make_shared<CrashDevice>();
  make_first_session(device, kLast);
  ASSERT_FALSE(HasFatalFailure());
  check_every_state(device->history(), 0, death(), kAllFates);
  RecordProperty("states", std::to_string(num_states_));
  std::printf("%lld states\n", static_cast<long long>(num_states_));
  EXPECT_GT(num_states_, 100);
}

// A session dies, another goes on from what it finds (a redo of the lost step under a new attempt), and dies too.
TEST_P(CrashModel, EveryStateOfASessionAfterADeadOneRecovers) {
  constexpr std::array kFewFates{Fate::kWhole, Fate::kNone, Fate::kHoleNearStart};
  const auto first = std::make_shared<CrashDevice>();
  make_first_session(first, 1);
  ASSERT_FALSE(HasFatalFailure());
  const History before = first->history();
  std::mt19937_64 random(11);
  for (int round = 0; round < 8; ++round) {
    const std::size_t at = before.acknowledged.front().at + random() % (before.now - before.acknowledged.front().at);
    // Also where power may fail: first the process is killed, then, before anything is flushed, the power goes.
    const Death first_death = round % 2 == 0 ? death() : Death::kProcess;
    std::map<std::size_t, Fate> fates;
    for (const std::size_t i : undecided(before, first_death, at)) fates[i] = kAllFates[random() % kAllFates.size()];
    const auto second =
        std::make_shared<CrashDevice>(image_after(before, at, fates), settled(before, first_death, at, fates));
    const std::size_t start = second->history().now;
    make_further_session(second, static_cast<std::uint64_t>(round), 2);
    ASSERT_FALSE(HasFatalFailure()) << "round " << round;
    check_every_state(second->history(), start, death(), kFewFates);
    ASSERT_FALSE(HasFatalFailure()) << "round " << round << ", first death at " << at;
  }
  std::printf("%lld states\n", static_cast<long long>(num_states_));
}

// Without a flush nothing is promised about power; but what is damaged must be found, never trained on.
TEST_P(CrashModel, WithoutFlushesTheLossOfPowerIsNeverSilent) {
  if (GetParam().durability == io::Durability::kPower) return;
  const auto device = std::make_shared<CrashDevice>();
  make_first_session(device, kLast);
  ASSERT_FALSE(HasFatalFailure());
  const History history = device->history();
  std::mt19937_64 random(5);
  std::int64_t whole = 0;
  std::int64_t lost = 0;  // what a missing flush costs: shows that the model can tell
  for (int round = 0; round < 300; ++round) {
    const std::size_t at = random() % (history.now + 1);
    std::map<std::size_t, Fate> fates;
    for (const std::size_t i : undecided(history, Death::kPower, at))
      fates[i] = random() % 3 != 0 ? Fate::kWhole : kAllFates[random() % kAllFates.size()];
    const Found found = recover(image_after(history, at, fates));
    ASSERT_FALSE(found.wrong_bytes) << "round " << round << ": " << found.fault;
    whole += found.step && found.fault.empty() ? 1 : 0;
    const auto needed = bounds_at(history, at).first;
    lost += needed && (!found.step || *found.step < *needed || !found.fault.empty()) ? 1 : 0;
  }
  EXPECT_GT(whole, 0);
  EXPECT_GT(lost, 0);
}

INSTANTIATE_TEST_SUITE_P(All, CrashModel,
                         ::testing::Values(Model{io::Durability::kProcess, 1}, Model{io::Durability::kProcess, 2},
                                           Model{io::Durability::kPower, 1}, Model{io::Durability::kPower, 2}),
                         [](const auto& suite) {
                           return std::string(suite.param.durability == io::Durability::kPower ? "power" : "process") +
                                  std::to_string(suite.param.num_volumes);
                         });

}  // namespace
}  // namespace headrace::fault
