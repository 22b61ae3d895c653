package usage

// This file makes a negative control of deploy/e2e: a vault whose budgets parallel calls overshoot.

// GuardReservation is the name of the guard that WeakenReservation removes.
const GuardReservation = "usage-reservation"

var unreserved bool

// WeakenReservation counts a call only when it was let go.
func WeakenReservation() { unreserved = true }

func underway(held map[*Reservation]struct{}) map[*Reservation]struct{} {
	if unreserved {
		return nil
	}
	return held
}
