// Two goroutines that reach one function on two ways, one three times as long as the
// other. They are preempted in it, and go on in whichever thread is free.
package main

import "sync"

//go:noinline
func work(words []int, turns int) (sum int) {
	for i := 0; i < turns; i++ {
		sum += words[(i*7919)%len(words)]
	}
	return sum
}

//go:noinline
func short(words []int) int { return work(words, 500000) + 1 }

//go:noinline
func long(words []int) int { return work(words, 1500000) + 1 }

func main() {
	words := make([]int, 1<<16)
	var all sync.WaitGroup
	for n := 0; n < 2; n++ {
		all.Add(1)
		go func() {
			defer all.Done()
			words[n] = short(words) + long(words)
		}()
	}
	all.Wait()
}
