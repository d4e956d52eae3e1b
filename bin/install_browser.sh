#!/usr/bin/env bash
# Installs Debian's Chromium for the report's tests, unless there is one.
set -euo pipefail

found() { command -v chromium || command -v chromium-browser || command -v google-chrome; }

if ! found >/dev/null && command -v apt-get >/dev/null; then
  if [ "$(id -u)" = 0 ]; then as_root=""; else as_root="sudo -n"; fi
  $as_root apt-get update -qq && $as_root apt-get install -y -qq chromium >/dev/null || true
fi
found || echo "no Chromium and none could be installed: the tests of the report's page will be skipped" >&2
