#!/bin/sh
# The system programs some tests want. As root on a Debian-like machine the missing ones are installed; elsewhere their
# tests skip and say so. With CI=true a missing one fails the run. More may be asked for, as PROGRAM:PACKAGE.
set -eu

PATH="$PATH:/usr/sbin:/sbin"
missing=""
for pair in strace:strace ip:iproute2 sshd:openssh-server ssh:openssh-client chromium:chromium parallel:parallel "$@"; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}"
done
[ -z "$missing" ] && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing >/dev/null
    exit 0
fi
echo "note: without$missing some tests skip; install them with your system's package manager" >&2
[ "${CI:-}" != true ]
