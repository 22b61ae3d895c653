// Module credentials makes the vault's list of public shapes of credentials: see main.go.
module durward.internal/scripts/tools/credentials

go 1.26.0

require github.com/BurntSushi/toml v1.5.0
