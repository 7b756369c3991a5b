// Simulated disk failures. `CrashingFiles` stops after a given number of operations and bytes, like a machine
// that loses power, and then discards what was not flushed. `HookedFiles` lets a test fail single operations.
#pragma once

#include "checkpoint/commit/files.h"
#include "support/random_partitions.h"

#include <penstock/checkpoint/error.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <vector>

namespace penstock::test {

namespace fs = std::filesystem;

class CrashingFiles : public checkpoint::FileSystem {
 public:
  //! Each operation costs one unit, and each written byte another.
  explicit CrashingFiles(std::int64_t budget = std::numeric_limits<std::int64_t>::max()) : budget_(budget) {}

  std::int64_t spent() const { return spent_; }
  bool crashed() const { return crashed_; }

  std::unique_ptr<checkpoint::OutputFile> create(const std::string& path) override {
    spend(1);
    if (!fs::exists(path)) pending_.push_back({checkpoint::parent_directory(path), Change::Create, path, {}});
    return std::make_unique<File>(*this, path);
  }
  void make_directory(const std::string& path) override {
    spend(1);
    if (fs::exists(path)) return;
    fs::create_directories(path);
    pending_.push_back({checkpoint::parent_directory(path), Change::Create, path, {}});
  }
  void rename(const std::string& from, const std::string& to) override {
    spend(1);
    fs::rename(from, to);
    renamed_[from] = to;
    pending_.push_back({checkpoint::parent_directory(to), Change::Rename, from, to});
  }
  void exchange(const std::string& a, const std::string& b) override {
    spend(1);
    swap(a, b);
    renamed_[a] = b;
    pending_.push_back({checkpoint::parent_directory(b), Change::Exchange, a, b});
  }
  void sync_directory(const std::string& path) override {
    spend(1);
    std::erase_if(pending_, [&](const Pending& change) { return change.directory == path; });
  }
  void remove(const std::string& path) override {
    spend(1);
    fs::remove_all(path);
    // A removed file needs no record; the file that had this name before the rename still exists.
    if (renamed_.contains(path)) return;
    std::erase_if(pending_, [&](const Pending& change) {
      return change.a == path || change.a.starts_with(path + "/");
    });
  }

  //! Simulates the state after the crash: unflushed files keep only some of their bytes, and unflushed
  //! changes of directories may be undone.
  void lose(Random& random) {
    for (auto it = pending_.rbegin(); it != pending_.rend(); ++it) {
      if (pick(random, 0, 3) == 0) continue;
      switch (it->change) {
        case Change::Create:
          fs::remove_all(now(it->a));
          break;
        case Change::Rename:
          if (fs::exists(it->b)) fs::rename(it->b, it->a);
          renamed_.erase(it->a);
          break;
        case Change::Exchange:
          swap(it->a, it->b);
          renamed_.erase(it->a);
          break;
      }
    }
    for (const std::string& path : unflushed_) {
      const std::string place = now(path);
      if (fs::exists(place))
        fs::resize_file(place, static_cast<std::uintmax_t>(
                                   pick(random, 0, static_cast<std::int64_t>(fs::file_size(place)))));
    }
  }

 private:
  enum class Change { Create, Rename, Exchange };
  struct Pending {
    std::string directory;
    Change change;
    std::string a, b;
  };

  class File : public checkpoint::OutputFile {
   public:
    File(CrashingFiles& files, const std::string& path)
        : files_(files), path_(path), file_(path, std::ios::binary) {
      files_.unflushed_.insert(path);
    }
    using checkpoint::OutputFile::write;
    void write(std::span<const std::uint8_t> bytes) override {
      const std::int64_t room = files_.budget_ - files_.spent_;
      const auto count =
          std::min<std::int64_t>(std::max<std::int64_t>(room, 0), static_cast<std::int64_t>(bytes.size()));
      file_.write(reinterpret_cast<const char*>(bytes.data()), count);
      file_.flush();
      files_.spend(static_cast<std::int64_t>(bytes.size()));
    }
    void finish() override {
      files_.spend(1);
      files_.unflushed_.erase(path_);
    }

   private:
    CrashingFiles& files_;
    std::string path_;
    std::ofstream file_;
  };

  void spend(std::int64_t units) {
    spent_ += units;
    if (spent_ <= budget_ && !crashed_) return;
    crashed_ = true;
    throw checkpoint::StorageError("the machine is off", EIO);
  }

  static void swap(const std::string& a, const std::string& b) {
    fs::rename(a, a + ".swap");
    fs::rename(b, a);
    fs::rename(a + ".swap", b);
  }

  //! The current location of a path whose directory was renamed, unless the rename was undone.
  std::string now(const std::string& path) const {
    for (const auto& [from, to] : renamed_) {
      if (path.starts_with(from + "/")) return to + path.substr(from.size());
    }
    return path;
  }

  std::int64_t budget_, spent_ = 0;
  bool crashed_ = false;
  std::vector<Pending> pending_;
  std::set<std::string> unflushed_;
  std::map<std::string, std::string> renamed_;
};

//! The real disk, with `before` called before every operation with its name and path. It may throw.
class HookedFiles : public checkpoint::FileSystem {
 public:
  using Before = std::function<void(const std::string& operation, const std::string& path)>;
  explicit HookedFiles(Before before) : before_(std::move(before)) {}

  std::unique_ptr<checkpoint::OutputFile> create(const std::string& path) override {
    before_("create", path);
    return std::make_unique<File>(checkpoint::disk().create(path), path, before_);
  }
  void make_directory(const std::string& path) override {
    before_("make", path), checkpoint::disk().make_directory(path);
  }
  void rename(const std::string& from, const std::string& to) override {
    before_("rename", to), checkpoint::disk().rename(from, to);
  }
  void exchange(const std::string& a, const std::string& b) override {
    before_("exchange", b), checkpoint::disk().exchange(a, b);
  }
  void sync_directory(const std::string& path) override {
    before_("sync", path), checkpoint::disk().sync_directory(path);
  }
  void remove(const std::string& path) override { before_("remove", path), checkpoint::disk().remove(path); }

 private:
  class File : public checkpoint::OutputFile {
   public:
    File(std::unique_ptr<checkpoint::OutputFile> file, std::string path, const Before& before)
        : file_(std::move(file)), path_(std::move(path)), before_(before) {}
    using checkpoint::OutputFile::write;
    void write(std::span<const std::uint8_t> bytes) override { before_("write", path_), file_->write(bytes); }
    void finish() override { before_("finish", path_), file_->finish(); }

   private:
    std::unique_ptr<checkpoint::OutputFile> file_;
    std::string path_;
    const Before& before_;
  };

  Before before_;
};

}  // namespace penstock::test
