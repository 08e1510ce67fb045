package logging

import "fmt"

const maxProblemsLogged = 100

// Problems logs the first 100 problems of list, and how many more there are. what is "problems" or "warnings".
func Problems[P any](log func(...any), list []P, what string) {
	for i, p := range list {
		if i == maxProblemsLogged {
			log(fmt.Sprintf("and %d more %s; `ratelimit check` shows all", len(list)-i, what))
			return
		}
		log(p)
	}
}
