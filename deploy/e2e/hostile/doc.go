// Package hostile sends hostile strings to the built programs, through everything that takes a string, in both eras of the
// protocol, and counts what comes of it where it matters: services that start or stop, rows in the executor's store, intents
// in the audit log, files and processes that appear, and what the answers show. A refusal on the way counts for nothing.
//
// The strings are the suite's own, those of public corpora where the environment names a folder with them (CORPORA), and
// mutants of both. With DURWARD_FULL=1 all strings are sent, and 100,000 mutants; else fewer mutants, and a sample in which
// every file of the corpora is represented. A seed decides what is in the sample and what the mutants are. The strings of
// the corpora are read and never kept. Meanwhile a client that means well works through the same gateway, and a human approves what it asks: what it did is all that may have happened.
//
// The detectors are the suite's own and share no code with the product's cleaner, so that neither is blind where the other
// is; each has its control, a planted answer or effect that it must find.
package hostile
