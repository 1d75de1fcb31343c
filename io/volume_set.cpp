// SPDX-License-Identifier: Apache-2.0
#include "io/volume_set.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "core/file.h"
#include "core/log.h"
#include "io/backends.h"
#include "io/block_device.h"
#include "io/volume_deal.h"
#include "io/volume_impl.h"

namespace headrace::io {
namespace {

Result<void> validate(const VolumeOptions& options) {
  const bool sizes = options.threads > 0 && options.block_bytes > 0 && options.in_flight_bytes >= 0 &&
                     options.throttle_bytes_per_s >= 0 && options.delay_us >= 0;
  if (sizes && options.stall_report.count() > 0 && options.deadline.count() > 0) return {};
  return make_error(
      ErrorCode::kConfig,
      fmt::format("I/O options: threads {}, block_bytes {}, in_flight_bytes {}, throttle {}, delay {} us, "
                  "stall report {} ms, deadline {} ms cannot work",
                  options.threads, options.block_bytes, options.in_flight_bytes, options.throttle_bytes_per_s,
                  options.delay_us, options.stall_report.count(), options.deadline.count()));
}

// Folders on one file system share its free space.
Result<void> check_space(const VolumeLayout& layout, const std::vector<std::string>& folders,
                         const std::vector<FolderProbe>& probes) {
  std::map<std::uint64_t, Bytes> wanted;
  for (std::uint32_t i = 0; i < folders.size(); ++i) wanted[probes[i].device] += layout.file_bytes(i);
  for (std::uint32_t i = 0; i < folders.size(); ++i) {
    HEADRACE_TRY(const Bytes free,
                 probes[i].is_device ? Result<Bytes>(probes[i].device_bytes) : free_bytes(folders[i]));
    const Bytes needed = wanted[probes[i].device];
    if (needed <= free) continue;
    return make_error(
        ErrorCode::kPreflight,
        fmt::format("{} has too little space: the volumes there need {} ({} bytes), {} ({} bytes) are free", folders[i],
                    format_bytes(needed), needed, format_bytes(free), free),
        "free space there, add a path on another disk, or set slots to 1");
  }
  return {};
}

// A device that holds no volume must hold nothing else either, unless the user says that it may be lost.
Result<void> check_content(const std::string& path, bool overwrite) {
  if (overwrite) return {};
  const UniqueFd device(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!device.valid()) return make_error(ErrorCode::kPreflight, fmt::format("opening {}: {}", path, errno_text(errno)));
  HEADRACE_TRY(const std::string content, content_of_device(device.get(), path));
  if (content.empty()) return {};
  return make_error(
      ErrorCode::kPreflight, fmt::format("{} holds {}, which a volume would overwrite", path, content),
      "name a folder on it instead; or, to lose what it holds, set headrace.io.overwrite_devices to true");
}

// The place of a new volume must be empty; what a dead process left there without a record is removed.
Result<void> clear_place(const std::string& path, const std::string& run_id, const VolumeOptions& options) {
  if (!path_exists(path)) return {};
  HEADRACE_TRY(const VolumeInfo info, inspect_volume(path, run_id));
  if (info.locked) {
    return make_error(ErrorCode::kPreflight, fmt::format("{} is in use by another process", path),
                      "wait for that run to end, or stop it; --run-dir with another folder starts a run of its own");
  }
  if (info.has_record) {
    return make_error(ErrorCode::kPreflight, fmt::format("{} holds a committed step of run {}", path, info.run_id),
                      "resume that run, or remove its volumes first: headrace checkpoint prune RUN-FOLDER");
  }
  const bool is_device = is_block_device(path);
  if (is_device && info.run_id.empty()) return check_content(path, options.overwrite_devices);
  log_info(fmt::format("{} is left over from a run that committed nothing; removing it ({})", path,
                       format_bytes(info.bytes)));
  if (is_device) return {};  // cleared when it is taken
  HEADRACE_TRY(const UniqueFd file, open_volume_file(path, std::chrono::milliseconds(200)));
  return remove_volume(file.get(), path, 0);
}

Result<void> make_files(VolumeSet::Impl& impl) {
  // Tells these volumes from earlier ones of the same run on the same device.
  std::uint64_t set_id = 0;
  if (::getrandom(&set_id, sizeof set_id, 0) != sizeof set_id)
    return make_error(ErrorCode::kFailed, "getrandom: " + errno_text(errno));
  set_id |= 1;
  impl.run_hash = run_id_hash(impl.run_id, set_id);
  for (std::uint32_t i = 0; i < impl.folders.size(); ++i) {
    const std::string path = volume_path(impl.folders[i], impl.run_id);
    HEADRACE_TRY(UniqueFd file, make_volume_file(path, impl.layout.file_bytes(i), impl.layout.scratch_offset()));
    impl.paths.push_back(path);
    impl.fds.push_back(std::move(file));
    const Superblock superblock{impl.run_id,
                                static_cast<std::uint32_t>(impl.folders.size()),
                                i,
                                impl.layout.alignment(),
                                impl.layout.file_bytes(i),
                                impl.layout.geometry(),
                                kSuperblockFormat,
                                set_id,
                                impl.layout.shares()};
    HEADRACE_RETURN_IF_ERROR(write_superblocks(impl.fds.back().get(), path, superblock));
    if (impl.options.durability == Durability::kPower && !impl.probes[i].is_device)
      HEADRACE_RETURN_IF_ERROR(sync_folder(impl.folders[i]));
  }
  return {};
}

// Gives each path its share of the tiles, within the space that it has.
Result<void> deal_tiles(VolumeSet::Impl& impl, const VolumeGeometry& geometry) {
  const auto check = [&] { return check_space(impl.layout, impl.folders, impl.probes); };
  const std::vector<std::uint32_t> even = impl.layout.shares();
  auto fits_evenly = check();
  auto dealt = deal_for(impl.folders, impl.probes, impl.options);
  if (!dealt.ok()) return fits_evenly.ok() ? Result<void>(std::move(dealt).error()) : std::move(fits_evenly);
  const std::vector<std::uint32_t> shares = std::move(dealt).value();
  const auto num_volumes = static_cast<std::uint32_t>(impl.folders.size());
  HEADRACE_TRY(impl.layout, VolumeLayout::make(geometry, num_volumes, impl.layout.alignment(), shares));
  auto fits = check();
  if (fits.ok() || !impl.options.shares.empty() || !fits_evenly.ok()) return fits;
  log_info("the fastest path has no room for its share: tiles are dealt evenly");
  HEADRACE_TRY(impl.layout, VolumeLayout::make(geometry, num_volumes, impl.layout.alignment(), even));
  return {};
}

bool same_geometry(const Superblock& a, const Superblock& b) {
  const auto same = [](const StreamGeometry& x, const StreamGeometry& y) {
    return x.stream == y.stream && x.tiles == y.tiles && x.tile_payload_bytes == y.tile_payload_bytes &&
           x.last_tile_payload_bytes == y.last_tile_payload_bytes && x.slots == y.slots;
  };
  const auto& streams_a = a.geometry.streams;
  const auto& streams_b = b.geometry.streams;
  return a.num_volumes == b.num_volumes && a.alignment == b.alignment && a.set_id == b.set_id && a.shares == b.shares &&
         a.geometry.record_payload_bytes == b.geometry.record_payload_bytes &&
         std::equal(streams_a.begin(), streams_a.end(), streams_b.begin(), streams_b.end(), same);
}

// Opens, locks and reads the superblock of each volume; puts them in the order they were made in.
Result<void> open_files(VolumeSet::Impl& impl, const std::vector<std::string>& folders,
                        std::chrono::milliseconds lock_deadline) {
  const std::size_t count = folders.size();
  HEADRACE_TRY(const std::vector<FolderProbe> probes, identify_folders(folders));
  impl.folders.resize(count);
  impl.probes.resize(count);
  impl.paths.resize(count);
  impl.fds.resize(count);
  std::optional<Superblock> first;
  const auto end = std::chrono::steady_clock::now() + lock_deadline;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string path = volume_path(folders[i], impl.run_id);
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    const auto open = impl.options.read_only ? open_volume_for_reading : open_volume_file;
    HEADRACE_TRY(UniqueFd file, open(path, std::max(left, std::chrono::milliseconds(0))));
    HEADRACE_TRY(const Superblock superblock, read_superblock(file.get(), path));
    const auto refuse = [&](const std::string& what) {
      return make_error(ErrorCode::kIo, fmt::format("{}: {}", path, what),
                        "give the paths that this run was started with");
    };
    if (superblock.run_id != impl.run_id)
      return refuse(fmt::format("run id: wanted {}, had {}", impl.run_id, superblock.run_id));
    if (superblock.num_volumes != count)
      return refuse(fmt::format("volumes of the run: wanted {} paths, had {}", superblock.num_volumes, count));
    if (first && !same_geometry(*first, superblock))
      return refuse(fmt::format("another geometry than {}", impl.paths[first->volume_idx]));
    if (impl.fds[superblock.volume_idx].valid()) {
      return refuse(fmt::format("volume {} of {} is there twice", superblock.volume_idx, count));
    }
    impl.folders[superblock.volume_idx] = folders[i];
    impl.probes[superblock.volume_idx] = probes[i];
    impl.paths[superblock.volume_idx] = path;
    impl.fds[superblock.volume_idx] = std::move(file);
    if (!first) first = superblock;
  }
  impl.run_hash = first->run_hash();
  HEADRACE_TRY(impl.layout, VolumeLayout::make(first->geometry, first->num_volumes, first->alignment, first->shares));
  // In the scratch extents, which are there: a run goes on when the disk has filled up meanwhile.
  const auto probe = impl.options.read_only ? probe_direct_reading : probe_direct;
  for (std::size_t i = 0; i < count; ++i) probe(impl.fds[i].get(), impl.layout.scratch_offset(), impl.probes[i]);
  return {};
}

// Decides between direct and buffered for each file, chooses the backend, starts the queue.
Result<void> start(VolumeSet::Impl& impl) {
  const VolumeOptions& options = impl.options;
  std::vector<QueueFile> files;
  std::vector<BackendTrial> trials;
  for (std::size_t i = 0; i < impl.fds.size(); ++i) {
    FolderProbe& probe = impl.probes[i];
    if (probe.direct && probe.alignment > impl.layout.alignment()) {
      probe.direct = false;
      probe.why_buffered =
          fmt::format("the volume is aligned to {} and the disk needs {}", impl.layout.alignment(), probe.alignment);
    }
    bool direct = options.mode != IoMode::kBuffered && probe.direct;
    if (direct && set_direct(impl.fds[i].get(), true) != 0) {
      direct = false;
      probe.why_buffered = "its file system refuses direct I/O";
    }
    if (options.mode == IoMode::kDirect && !direct) {
      return make_error(
          ErrorCode::kPreflight,
          fmt::format("direct I/O is not possible in {}: {}", impl.folders[i], probe.why_buffered),
          "set headrace.io.mode to \"auto\" to run through the page cache, or name a folder on another disk");
    }
    if (options.mode == IoMode::kAuto && !direct) {
      log_warn(fmt::format("{}: direct I/O is not used ({}); the data goes through the page cache", impl.folders[i],
                           probe.why_buffered));
    }
    if (direct) impl.memory_alignment = std::max(impl.memory_alignment, probe.alignment);
    files.push_back({impl.fds[i].get(), impl.paths[i], direct});
    trials.push_back({impl.fds[i].get(), impl.layout.scratch_offset(), impl.layout.alignment(), impl.folders[i], direct,
                      options.read_only});
  }
  impl.memory_alignment = std::max(impl.memory_alignment, impl.layout.alignment());
  const std::vector<BackendCandidate> candidates =
      options.seam != nullptr ? options.seam->candidates : backend_candidates(options.backend, options.threads);
  HEADRACE_TRY(std::unique_ptr<IoBackend> backend, choose_backend(candidates, trials));
  const Bytes in_flight =
      options.in_flight_bytes > 0 ? options.in_flight_bytes : kInFlightPerPath * static_cast<Bytes>(impl.fds.size());
  QueueOptions queue_options{
      options.mode,     options.block_bytes,          in_flight,       impl.layout.alignment(), options.stall_report,
      options.deadline, options.throttle_bytes_per_s, options.delay_us};
  impl.queue = std::make_unique<Queue>(std::move(backend), std::move(files), queue_options);
  impl.options.seam = nullptr;
  return {};
}

}  // namespace

VolumeSet::Impl::~Impl() {
  if (queue == nullptr || queue->stop()) return;
  // A request that the kernel or a thread still has names the descriptor by number: it must not come to mean another
  // file.
  for (UniqueFd& fd : fds) (void)fd.release();
}

VolumeSet::VolumeSet(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
VolumeSet::~VolumeSet() = default;

Result<std::unique_ptr<VolumeSet>> VolumeSet::create(const std::vector<std::string>& paths, const std::string& run_id,
                                                     const VolumeGeometry& geometry, const VolumeOptions& options) {
  HEADRACE_RETURN_IF_ERROR(validate(options));
  HEADRACE_RETURN_IF_ERROR(validate_run_id(run_id));
  const BlockFileSizeSignal blocked;
  auto impl = std::make_unique<Impl>();
  impl->run_id = run_id;
  impl->options = options;
  impl->folders = paths;
  HEADRACE_TRY(impl->probes, identify_folders(paths));
  for (std::size_t i = 0; i < paths.size(); ++i) HEADRACE_RETURN_IF_ERROR(probe_writing(paths[i], impl->probes[i]));
  Bytes alignment = kMinAlignment;
  for (const FolderProbe& probe : impl->probes) alignment = std::max(alignment, probe.alignment);
  const auto num_volumes = static_cast<std::uint32_t>(paths.size());
  HEADRACE_TRY(impl->layout, VolumeLayout::make(geometry, num_volumes, alignment));
  HEADRACE_RETURN_IF_ERROR(
      encode_superblock({run_id, num_volumes, 0, alignment, 0, geometry, kSuperblockFormat, 0,
                         impl->layout.shares()}));  // too many streams fail before anything is made
  for (const std::string& path : paths)
    HEADRACE_RETURN_IF_ERROR(clear_place(volume_path(path, run_id), run_id, options));
  HEADRACE_RETURN_IF_ERROR(deal_tiles(*impl, geometry));
  auto made = make_files(*impl);
  if (made.ok()) {
    for (std::size_t i = 0; i < paths.size(); ++i)
      if (impl->probes[i].is_device) probe_direct(impl->fds[i].get(), impl->layout.scratch_offset(), impl->probes[i]);
    made = start(*impl);
  }
  if (!made.ok()) {
    for (std::size_t i = 0; i < impl->fds.size(); ++i)
      (void)remove_volume(impl->fds[i].get(), impl->paths[i], impl->layout.scratch_offset());  // the first error counts
    return std::move(made).error();
  }
  return std::unique_ptr<VolumeSet>(new VolumeSet(std::move(impl)));
}

Result<std::unique_ptr<VolumeSet>> VolumeSet::open(const std::vector<std::string>& paths, const std::string& run_id,
                                                   const VolumeOptions& options,
                                                   std::chrono::milliseconds lock_deadline) {
  HEADRACE_RETURN_IF_ERROR(validate(options));
  HEADRACE_RETURN_IF_ERROR(validate_run_id(run_id));
  const BlockFileSizeSignal blocked;
  auto impl = std::make_unique<Impl>();
  impl->run_id = run_id;
  impl->options = options;
  HEADRACE_RETURN_IF_ERROR(open_files(*impl, paths, lock_deadline));
  HEADRACE_RETURN_IF_ERROR(start(*impl));
  return std::unique_ptr<VolumeSet>(new VolumeSet(std::move(impl)));
}

const VolumeGeometry& VolumeSet::geometry() const noexcept { return impl_->layout.geometry(); }
Bytes VolumeSet::payload_alignment() const noexcept { return impl_->memory_alignment; }
VolumeCounters VolumeSet::counters() const { return impl_->queue->counters(); }
std::vector<std::string> VolumeSet::files() const { return impl_->paths; }

Bytes VolumeSet::payload_extent_bytes(std::uint32_t stream, std::int64_t tile) const {
  return impl_->layout.extent_bytes(stream, tile);
}
Bytes VolumeSet::disk_bytes(std::uint32_t stream, std::int64_t tile) const {
  return impl_->layout.disk_bytes(stream, tile);
}

std::string VolumeSet::describe() const {
  std::size_t direct = 0;
  std::string folders;
  for (std::uint32_t i = 0; i < impl_->folders.size(); ++i) {
    direct += impl_->queue->is_direct(i) ? 1 : 0;
    folders += (i == 0 ? "" : ", ") + impl_->folders[i];
  }
  const std::size_t count = impl_->folders.size();
  const std::string mode = direct == count ? "direct I/O"
                           : direct == 0
                               ? "buffered I/O"
                               : fmt::format("direct I/O on {} of {} volumes, buffered on the others", direct, count);
  return fmt::format("{}, {}, {} volume{} in {}", impl_->queue->backend_name(), mode, count, count == 1 ? "" : "s",
                     folders);
}

Ticket VolumeSet::read(std::span<const TileTransfer> transfers, CompletionSink sink) {
  return impl_->move_tiles(IoOperation::kRead, transfers, sink);
}
Ticket VolumeSet::write(std::span<const TileTransfer> transfers, CompletionSink sink) {
  return impl_->move_tiles(IoOperation::kWrite, transfers, sink);
}

}  // namespace headrace::io
