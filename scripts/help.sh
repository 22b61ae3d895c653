# Sourced first, with the script's arguments: where they ask for help it prints the comment at the script's head, and ends the script.
# shellcheck shell=bash
case ${1:-} in -h | --help) sed -n '2,${/^#/!q;s/^# \{0,1\}//p}' "$0"; exit ;; esac
