// SPDX-License-Identifier: Apache-2.0
#include "models/trainer/run_folder.h"

#include <gtest/gtest.h>

#include <regex>

#include "tests/models/files_support.h"

namespace headrace::models {
namespace {

class RunFolderFiles : public testing::Test {
 protected:
  RunFolderFiles() : folder_(open(temp_ / "run")) {}
  static RunFolder open(const std::string& path) {
    auto folder = RunFolder::open(path);
    if (!folder.ok()) {
      ADD_FAILURE() << folder.error().to_string();
      std::abort();
    }
    return std::move(folder).value();
  }
  [[nodiscard]] std::string file(const std::string& name) const { return folder_.path() + "/" + name; }
  [[nodiscard]] std::string metrics() const { return test::read_whole(file("metrics.jsonl")); }
  // What metrics.jsonl holds after a repair of `text`.
  std::string repaired(const std::string& text, std::uint64_t committed, const std::string& row) {
    test::write_whole(file("metrics.jsonl"), text);
    const Result<void> result = folder_.repair_metrics(committed, row);
    EXPECT_TRUE(result.ok()) << result.error().to_string();
    return metrics();
  }

  test::TempFolder temp_;
  RunFolder folder_;
};

const std::string kOne = R"({"step":1,"loss":4.5})", kTwo = R"({"step":2,"loss":4.25})",
                  kThree = R"({"step":3,"loss":4})", kEvalTwo = R"({"step":2,"val_loss":4.4})",
                  kEvalThree = R"({"step":3,"val_loss":4.3})";

TEST_F(RunFolderFiles, RepairLeavesAWholeFileAsItIs) {
  const std::string whole = kOne + "\n" + kTwo + "\n" + kEvalTwo + "\n";
  EXPECT_EQ(repaired(whole, 2, kTwo), whole);
}

TEST_F(RunFolderFiles, RepairCutsATornLastLineAndAddsTheCommittedRow) {
  for (std::size_t length = 0; length <= kTwo.size(); ++length)  // the whole row without its line end is torn too
    EXPECT_EQ(repaired(kOne + "\n" + kTwo.substr(0, length), 2, kTwo), kOne + "\n" + kTwo + "\n") << length;
}

TEST_F(RunFolderFiles, RepairCutsATornLineOfAStepThatWasNotCommitted) {
  EXPECT_EQ(repaired(kOne + "\n" + kTwo + "\n" + kThree.substr(0, 9), 2, kTwo), kOne + "\n" + kTwo + "\n");
}

TEST_F(RunFolderFiles, RepairCutsRowsBeyondTheCommittedStepEvaluationsToo) {
  EXPECT_EQ(repaired(kOne + "\n" + kTwo + "\n" + kThree + "\n" + kEvalThree + "\n", 2, kTwo),
            kOne + "\n" + kTwo + "\n");
}

TEST_F(RunFolderFiles, RepairAddsTheCommittedRowWhereOnlyAnEvaluationHasItsStep) {
  EXPECT_EQ(repaired(kOne + "\n" + kEvalTwo + "\n", 2, kTwo), kOne + "\n" + kEvalTwo + "\n" + kTwo + "\n");
}

TEST_F(RunFolderFiles, RepairKeepsEvaluationsOfCommittedSteps) {
  EXPECT_EQ(repaired(kOne + "\n" + kTwo + "\n" + kEvalTwo + "\n" + kThree + "\n" + kEvalThree + "\n", 3, kThree),
            kOne + "\n" + kTwo + "\n" + kEvalTwo + "\n" + kThree + "\n" + kEvalThree + "\n");
}

TEST_F(RunFolderFiles, RepairWritesAMissingFile) {
  ASSERT_FALSE(std::filesystem::exists(file("metrics.jsonl")));
  ASSERT_TRUE(folder_.repair_metrics(1, kOne).ok());
  EXPECT_EQ(metrics(), kOne + "\n");
}

TEST_F(RunFolderFiles, RepairOfARunThatCommittedNoStepLeavesNoRow) {
  EXPECT_EQ(repaired(kOne + "\n" + kTwo.substr(0, 5), 0, ""), "");
}

TEST_F(RunFolderFiles, RepairDropsLinesThatAreNoRows) {
  EXPECT_EQ(
      repaired(kOne + "\n\n{\"loss\":1}\n[1]\nxyz\n{\"step\":\"2\"}\n" + std::string(3, '\0') + "\n" + kTwo + "\n", 2,
               kTwo),
      kOne + "\n" + kTwo + "\n");
}

TEST_F(RunFolderFiles, RepairDoneTwiceChangesNothingMore) {
  const std::string once = repaired(kOne + "\n" + kTwo.substr(0, 7), 2, kTwo);
  ASSERT_TRUE(folder_.repair_metrics(2, kTwo).ok());
  EXPECT_EQ(metrics(), once);
}

TEST_F(RunFolderFiles, RowsAreAppendedAndCleared) {
  ASSERT_TRUE(folder_.append_metrics(kOne).ok());
  ASSERT_TRUE(folder_.append_metrics(kTwo).ok());
  EXPECT_EQ(metrics(), kOne + "\n" + kTwo + "\n");
  ASSERT_TRUE(folder_.clear_metrics().ok());
  EXPECT_EQ(metrics(), "");
}

RunIdentity sample_identity() {
  RunIdentity identity;
  identity.run_id = "r-20260301-101502-3f7a";
  identity.nvme_paths = {"/disks/a b", "/disks/\"q\""};
  identity.tile_elements = 65'536;
  identity.durable = true;
  identity.fingerprint = "{\"seed\":1}";
  identity.config_text = "{\"headrace.steps\":10,\"text\":\"line\\nend \xC3\xA9\"}";
  return identity;
}

TEST_F(RunFolderFiles, AnIdentityComesBackFieldByField) {
  const RunIdentity written = sample_identity();
  ASSERT_TRUE(folder_.write_identity(written).ok());
  const auto read = folder_.identity();
  ASSERT_TRUE(read.ok()) << read.error().to_string();
  ASSERT_TRUE(read->has_value());
  EXPECT_EQ((*read)->run_id, written.run_id);
  EXPECT_EQ((*read)->nvme_paths, written.nvme_paths);
  EXPECT_EQ((*read)->tile_elements, written.tile_elements);
  EXPECT_EQ((*read)->durable, written.durable);
  EXPECT_EQ((*read)->fingerprint, written.fingerprint);
  EXPECT_EQ((*read)->config_text, written.config_text);
}

TEST_F(RunFolderFiles, AFreshFolderHasNoIdentity) {
  const auto identity = folder_.identity();
  ASSERT_TRUE(identity.ok());
  EXPECT_FALSE(identity->has_value());
}

TEST_F(RunFolderFiles, EveryTruncationOfAnIdentityIsAnErrorThatNamesTheFile) {
  ASSERT_TRUE(folder_.write_identity(sample_identity()).ok());
  const std::string whole = test::read_whole(file("run.json"));
  for (std::size_t length = 0; length + 1 < whole.size(); ++length) {  // without the last line end it is whole
    test::write_whole(file("run.json"), whole.substr(0, length));
    const auto identity = folder_.identity();
    ASSERT_FALSE(identity.ok()) << length;
    EXPECT_EQ(identity.error().code, ErrorCode::kConfig);
    EXPECT_NE(identity.error().to_string().find("run.json"), std::string::npos) << identity.error().to_string();
  }
}

TEST_F(RunFolderFiles, AnIdentityWithoutItsNeededFieldsOrWithOtherTypesIsDamaged) {
  for (const char* text :
       {"{}", "[]", "null", "7", R"({"run_id":""})", R"({"run_id":"r"})", R"({"run_id":"r","tile_elements":0})",
        R"({"run_id":"r","tile_elements":-4})", R"({"run_id":"r","tile_elements":"many"})",
        R"({"run_id":null,"tile_elements":4096})", R"({"run_id":"r","tile_elements":null})"}) {
    test::write_whole(file("run.json"), text);
    const auto identity = folder_.identity();
    ASSERT_FALSE(identity.ok()) << text;
    EXPECT_EQ(identity.error().code, ErrorCode::kConfig) << text;
  }
}

TEST_F(RunFolderFiles, AFolderThatCannotBeMadeIsAPreflightError) {
  test::write_whole(temp_ / "plain", "a file");
  const auto folder = RunFolder::open(temp_ / "plain/run");
  ASSERT_FALSE(folder.ok());
  EXPECT_EQ(folder.error().code, ErrorCode::kPreflight);
}

TEST(RunId, NamesTheTimeAndEndsInFourHexDigits) {
  const std::regex form("r-[0-9]{8}-[0-9]{6}-[0-9a-f]{4}");
  EXPECT_TRUE(std::regex_match(new_run_id(), form));
}

}  // namespace
}  // namespace headrace::models
