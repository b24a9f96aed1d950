#!/bin/bash
set -e
cd /app
patch -p1 < "$(dirname "$0")/fix.patch"
