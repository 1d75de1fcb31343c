// SPDX-License-Identifier: Apache-2.0
#include "core/cgroup.h"

#include <gtest/gtest.h>

#include "core/file.h"
#include "temporary_folder.h"

namespace headrace {
namespace {

// A folder that plays /proc and /sys of a machine.
class Cgroup : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    const std::string whole = folder_.path() + path;
    ASSERT_TRUE(create_folders(parent_folder(whole)).ok());
    const Result<void> written = write_file_atomically(whole, text);
    ASSERT_TRUE(written.ok()) << written.error().to_string();
  }
  void version2(const std::string& group, const std::string& mount_root = "/") {
    write("/proc/self/cgroup", "0::" + group + "\n");
    write("/proc/self/mountinfo", "22 1 0:20 / /proc rw - proc proc rw\n30 23 0:26 " + mount_root +
                                      " /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n");
  }
  [[nodiscard]] CgroupLimits limits() const { return read_cgroup_limits(folder_.path()); }

 private:
  TemporaryFolder folder_;
};

TEST_F(Cgroup, HasNoLimitsWhereThereAreNone) {
  EXPECT_FALSE(limits().memory);
  EXPECT_FALSE(limits().cpu_cores);
  version2("/user.slice/run");
  write("/sys/fs/cgroup/user.slice/run/memory.max", "max\n");
  write("/sys/fs/cgroup/user.slice/run/cpu.max", "max 100000\n");
  EXPECT_FALSE(limits().memory);
  EXPECT_FALSE(limits().cpu_cores);
}

TEST_F(Cgroup, TakesTheSmallestOnTheWayUp) {
  version2("/user.slice/run/leaf");
  write("/sys/fs/cgroup/user.slice/run/leaf/memory.max", "max\n");
  write("/sys/fs/cgroup/user.slice/run/memory.max", "2147483648\n");
  write("/sys/fs/cgroup/user.slice/memory.max", "8589934592\n");
  write("/sys/fs/cgroup/user.slice/run/leaf/cpu.max", "400000 100000\n");
  write("/sys/fs/cgroup/user.slice/cpu.max", "150000 100000\n");
  EXPECT_EQ(limits().memory, 2 * kGiB);
  EXPECT_EQ(limits().cpu_cores, 1.5);
}

TEST_F(Cgroup, CountsTheThrottlingMarkAsALimit) {
  version2("/run");
  write("/sys/fs/cgroup/run/memory.max", "2147483648\n");
  write("/sys/fs/cgroup/run/memory.high", "1073741824\n");
  EXPECT_EQ(limits().memory, kGiB);
}

TEST_F(Cgroup, ReadsTheMountPointWhenTheGroupLiesOutsideOfIt) {
  version2("/../other");
  write("/sys/fs/cgroup/memory.max", "1048576\n");
  EXPECT_EQ(limits().memory, kMiB);
  version2("/machine/a/inner", "/machine/a");
  write("/sys/fs/cgroup/inner/memory.max", "4096\n");
  EXPECT_EQ(limits().memory, 4096);
  version2("/elsewhere", "/machine/a");
  EXPECT_EQ(limits().memory, kMiB);
}

TEST_F(Cgroup, ReadsTheFirstVersion) {
  write("/proc/self/cgroup", "7:cpu,cpuacct:/docker/c1\n5:memory:/docker/c1/leaf\n1:name=systemd:/docker\n0::/\n");
  write("/proc/self/mountinfo",
        "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "32 23 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n");
  write("/sys/fs/cgroup/memory/docker/c1/leaf/memory.limit_in_bytes", "9223372036854771712\n");
  write("/sys/fs/cgroup/memory/docker/c1/memory.limit_in_bytes", "536870912\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("/sys/fs/cgroup/cpu,cpuacct/docker/c1/cpu.cfs_quota_us", "250000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/docker/c1/cpu.cfs_period_us", "100000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(limits().memory, 512 * kMiB);
  EXPECT_EQ(limits().cpu_cores, 2.5);
}

}  // namespace
}  // namespace headrace
