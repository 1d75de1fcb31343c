#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a build into an empty folder, then configures, builds and runs a project that finds it there.
# usage: downstream_test.sh BUILD_FOLDER SOURCE_FOLDER CXX_COMPILER
set -euo pipefail
build=$1 source=$2 compiler=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cmake --install "$build" --prefix "$folder/prefix" > "$folder/install.log" || { cat "$folder/install.log"; exit 1; }
cmake -S "$source/tests/lint/downstream" -B "$folder/build" -G Ninja -DCMAKE_PREFIX_PATH="$folder/prefix" \
  -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=Release
# The build must not see the sources it was installed from.
if grep -rlF "$source" "$folder/prefix/lib" --include='*.cmake'; then
  echo "the installed package names the source folder"
  exit 1
fi
cmake --build "$folder/build"
# Every installed header stands on what is installed.
(cd "$folder/prefix/include/headrace" && find . -name '*.h' | sed 's|^\./\(.*\)$|#include <\1>|') > "$folder/all_headers.cpp"
"$compiler" -std=c++20 -fsyntax-only -I "$folder/prefix/include/headrace" "$folder/all_headers.cpp"
# The installed example is a project of its own.
cmake -S "$folder/prefix/share/headrace/examples/cpu_adam" -B "$folder/example" -G Ninja -DCMAKE_PREFIX_PATH="$folder/prefix" \
  -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=Release
cmake --build "$folder/example"
for optimizer in AdamW Adam Lion Adagrad SGD Adafactor Muon; do
  "$folder/example/train_arrays" "$optimizer"
done
for program in uses_core uses_cpu_adam uses_all; do
  "$folder/build/$program"
done
