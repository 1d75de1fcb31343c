// SPDX-License-Identifier: Apache-2.0
#include "core/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "temporary_folder.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(File, WritesAndReadsAtOffsets) {
  const TemporaryFolder folder;
  Result<File> file = File::create_new(folder.path("data"));
  ASSERT_TRUE(file.ok()) << file.error().to_string();
  ASSERT_TRUE(file->write_all(4, bytes_of("later")).ok());
  ASSERT_TRUE(file->write_all(0, bytes_of("head")).ok());
  ASSERT_TRUE(file->sync().ok());
  EXPECT_EQ(*file->size(), 9);
  const Result<File> reader = File::open_read(folder.path("data"));
  ASSERT_TRUE(reader.ok());
  std::string text(5, ' ');
  ASSERT_TRUE(reader->read_exact(4, std::as_writable_bytes(std::span(text))).ok());
  EXPECT_EQ(text, "later");
  ASSERT_TRUE(file->truncate(6).ok());
  EXPECT_EQ(*read_text_file(folder.path("data")), "headla");
}

TEST(File, NamesOffsetWantedAndGotWhenTheFileEnds) {
  const TemporaryFolder folder;
  ASSERT_TRUE(write_file_atomically(folder.path("short"), "0123456789").ok());
  const Result<File> file = File::open_read(folder.path("short"));
  ASSERT_TRUE(file.ok());
  std::vector<std::byte> out(8);
  const Result<void> read = file->read_exact(5, out);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, ErrorCode::kIo);
  EXPECT_EQ(read.error().message,
            folder.path("short") + ": reading of 8 bytes at offset 5 stopped after 5: the file ends there");
}

TEST(File, RefusesToCreateWhatExistsAndToOpenWhatDoesNot) {
  const TemporaryFolder folder;
  ASSERT_TRUE(File::create_new(folder.path("one")).ok());
  const Result<File> again = File::create_new(folder.path("one"));
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(again.error().message, HasSubstr("File exists"));
  const Result<File> missing = File::open_read(folder.path("none"));
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.error().message, HasSubstr(folder.path("none")));
  EXPECT_THAT(missing.error().message, HasSubstr("No such file or directory"));
  EXPECT_FALSE(File::open_read_write(folder.path("none")).ok());
  const Result<File> directory = File::open_read(folder.path());
  ASSERT_FALSE(directory.ok());
  EXPECT_THAT(directory.error().message, HasSubstr("Is a directory"));
}

TEST(File, ReportsAFullDevice) {
  Result<File> full = File::open_read_write("/dev/full");
  if (!full.ok()) GTEST_SKIP() << full.error().to_string();
  const Result<void> written = full->write_all(0, bytes_of("x"));
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.error().message,
            "/dev/full: writing of 1 bytes at offset 0 stopped after 0: No space left on device");
}

TEST(File, AppendsAtTheEndWhoeverElseWrites) {
  const TemporaryFolder folder;
  Result<File> first = File::open_append(folder.path("log"));
  Result<File> second = File::open_append(folder.path("log"));
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_TRUE(first->append("a\n").ok());
  ASSERT_TRUE(second->append("b\n").ok());
  ASSERT_TRUE(first->append("c\n").ok());
  EXPECT_EQ(*read_text_file(folder.path("log")), "a\nb\nc\n");
}

TEST(File, ClosesWhatItOwnsWhenMoved) {
  const TemporaryFolder folder;
  Result<File> made = File::create_new(folder.path("data"));
  ASSERT_TRUE(made.ok());
  const int fd = made->fd();
  {
    File owner = std::move(made).value();
    EXPECT_EQ(owner.fd(), fd);
    EXPECT_EQ(owner.path(), folder.path("data"));
  }
  EXPECT_EQ(fcntl(fd, F_GETFD), -1);
}

TEST(ReadTextFile, ReadsFilesThatHaveNoSize) {
  const Result<std::string> text = read_text_file("/proc/self/status");
  ASSERT_TRUE(text.ok());
  EXPECT_THAT(*text, HasSubstr("VmRSS"));
}

TEST(WriteFileAtomically, ReplacesAndLeavesNothingBeside) {
  const TemporaryFolder folder;
  ASSERT_TRUE(write_file_atomically(folder.path("config"), "old").ok());
  ASSERT_TRUE(write_file_atomically(folder.path("config"), std::string(100'000, 'n')).ok());
  EXPECT_EQ(*read_text_file(folder.path("config")), std::string(100'000, 'n'));
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path())) ++files;
  EXPECT_EQ(files, 1);
}

TEST(WriteFileAtomically, KeepsTheOldContentsWhenItFails) {
  const TemporaryFolder folder;
  ASSERT_TRUE(create_folders(folder.path("target")).ok());  // a folder cannot be replaced by a file
  const Result<void> written = write_file_atomically(folder.path("target"), "x");
  ASSERT_FALSE(written.ok());
  EXPECT_THAT(written.error().message, HasSubstr("renaming into place"));
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path())) ++files;
  EXPECT_EQ(files, 1) << "the temporary file was left";
  EXPECT_FALSE(write_file_atomically(folder.path("no/such/folder/file"), "x").ok());
}

TEST(Paths, AreJoinedAndTakenApart) {
  EXPECT_EQ(join_path("a", "b"), "a/b");
  EXPECT_EQ(join_path("a/", "b"), "a/b");
  EXPECT_EQ(join_path("", "b"), "b");
  EXPECT_EQ(join_path("a", "/b"), "/b");
  EXPECT_EQ(parent_folder("a/b/c"), "a/b");
  EXPECT_EQ(parent_folder("c"), ".");
  EXPECT_EQ(parent_folder("/c"), "/");
}

TEST(Folders, AreMadeWithParentsAndRefusedOverFiles) {
  const TemporaryFolder folder;
  ASSERT_TRUE(create_folders(folder.path("a/b/c")).ok());
  ASSERT_TRUE(create_folders(folder.path("a/b/c")).ok());
  EXPECT_TRUE(is_folder(folder.path("a/b")));
  ASSERT_TRUE(write_file_atomically(folder.path("file"), "").ok());
  EXPECT_TRUE(path_exists(folder.path("file")));
  EXPECT_FALSE(is_folder(folder.path("file")));
  EXPECT_FALSE(create_folders(folder.path("file")).ok());
  EXPECT_FALSE(create_folders(folder.path("file/below")).ok());
}

TEST(FreeBytes, AreKnownForAPathThatExists) {
  const TemporaryFolder folder;
  const Result<Bytes> bytes = free_bytes(folder.path());
  ASSERT_TRUE(bytes.ok());
  EXPECT_GE(*bytes, 0);
  EXPECT_FALSE(free_bytes(folder.path("missing")).ok());
}

}  // namespace
}  // namespace headrace
