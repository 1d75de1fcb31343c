// SPDX-License-Identifier: Apache-2.0
// Runs a command in which system calls fail, as a container's filter makes them:
//   refuse_system_calls io_uring_setup=1 io_setup=11 -- COMMAND ARGUMENT…     (numbers are errno)
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "fault_support.h"

int main(int argc, char** argv) {
  const std::map<std::string, int> known{{"io_uring_setup", SYS_io_uring_setup}, {"io_setup", SYS_io_setup}};
  int at = 1;
  for (; at < argc && std::string(argv[at]) != "--"; ++at) {
    const std::string argument = argv[at];
    const auto equals = argument.find('=');
    const auto call = known.find(argument.substr(0, equals));
    if (equals == std::string::npos || call == known.end()) {
      std::fprintf(stderr, "no such system call: %s\n", argv[at]);
      return 2;
    }
    if (!headrace::fault::refuse_system_call(call->second, std::atoi(argument.c_str() + equals + 1))) {
      std::perror("seccomp");
      return 3;
    }
  }
  if (at + 1 >= argc) {
    std::fputs("usage: refuse_system_calls CALL=ERRNO… -- COMMAND…\n", stderr);
    return 2;
  }
  ::execvp(argv[at + 1], argv + at + 1);
  std::perror(argv[at + 1]);
  return 127;
}
