// Package e2e tests Durward's built programs from outside, as separate processes that speak over sockets: the main job, bad
// input, faults, the envelope, and who may call what. It links none of their code but the contract and the platform's
// public formats.
package e2e
