#!/usr/bin/env bash
# Prints the product's modules, one folder a line, from go.work.
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.." && go work edit -json | sed -n 's/.*"DiskPath": "\.\/\(.*\)".*/\1/p'
