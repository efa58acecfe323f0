// Drives TiKV's own Go client against an upstream and prints what it saw as one line of JSON.
//
//	interop write PD API SECONDS   transactions of every kind for at least this time, and until the standard input
//	                               ends, while regions move; then a reading
//	interop read  PD API           a reading alone
//
// API is 1, or 2 for keys of the keyspace DEFAULT. "ready" is printed when the regions may begin to move. A
// reading is the same for every way to read, or the program fails.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pingcap/kvproto/pkg/kvrpcpb"
	"github.com/pingcap/log"
	tikverr "github.com/tikv/client-go/v2/error"
	"github.com/tikv/client-go/v2/kv"
	"github.com/tikv/client-go/v2/rawkv"
	"github.com/tikv/client-go/v2/txnkv"
	"github.com/tikv/client-go/v2/txnkv/transaction"
	"github.com/tikv/client-go/v2/util"
	"go.uber.org/zap/zapcore"
)

const (
	accounts  = 24
	opening   = 100
	largeKeys = 6000
	batchGet  = 2000
	lockWait  = 3000
)

var kinds = []string{"optimistic", "pessimistic", "async", "one-phase"}

// Reading is what the keys held at one timestamp.
type Reading struct {
	Digest string `json:"digest"`
	Keys   int    `json:"keys"`
	Sum    int    `json:"sum"`
	Large  int    `json:"large"`
	Logged int    `json:"logged"`
	Raw    string `json:"raw"`
	RawLen int    `json:"raw_keys"`
}

// Ended is a transaction that somebody else has rolled back: how, and how old it was when the client learned it.
type Ended struct {
	Why   string `json:"why"`
	AgeMs int64  `json:"age_ms"`
}

// Report is what the program prints.
type Report struct {
	Reading      Reading        `json:"reading"`
	Committed    map[string]int `json:"committed"`
	Modes        map[string]int `json:"modes"`
	Retried      int            `json:"retried"`
	RolledBack   []Ended        `json:"rolled_back"`
	Undetermined int            `json:"undetermined"`
	Deadlock     bool           `json:"deadlock"`
	Exists       bool           `json:"exists"`
	Regions      int            `json:"regions"`
}

func check(err error, what string) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %+v\n", what, err)
		os.Exit(1)
	}
}

func ensure(holds bool, format string, args ...any) {
	if !holds {
		check(fmt.Errorf(format, args...), "not so")
	}
}

func account(i int) []byte { return []byte(fmt.Sprintf("acct%02d", i)) }
func large(i int) []byte   { return []byte(fmt.Sprintf("big%05d", i)) }
func rawKey(i int) []byte  { return []byte(fmt.Sprintf("raw%04d", i)) }

func number(value []byte) int {
	n, err := strconv.Atoi(string(value))
	check(err, "a balance")
	return n
}

// bank keeps what the workers found.
type bank struct {
	client *txnkv.Client
	mutex  sync.Mutex
	report Report
}

func (b *bank) note(change func(*Report)) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	change(&b.report)
}

func passing(err error) bool {
	return tikverr.IsErrWriteConflict(err) || strings.Contains(err.Error(), "try again later") ||
		strings.Contains(err.Error(), "Deadlock") || strings.Contains(err.Error(), "ock wait timeout") ||
		rolledBack(err) || strings.Contains(err.Error(), "retryable")
}

// rolledBack tells whether somebody else has ended a transaction that was alive.
func rolledBack(err error) bool {
	return strings.Contains(err.Error(), "SelfRolledBack") || strings.Contains(err.Error(), "rolled back")
}

// transfer moves one between two accounts and leaves a note of it, in a transaction of the kind.
func (b *bank) transfer(ctx context.Context, kind string, chance *rand.Rand, done int) error {
	txn, err := b.client.Begin()
	if err != nil {
		return err
	}
	mode := ""
	txn.SetCommitCallback(func(info string, err error) {
		var learned struct {
			Mode string `json:"txn_commit_mode"`
		}
		if err == nil && json.Unmarshal([]byte(info), &learned) == nil {
			mode = learned.Mode
		}
	})
	one := chance.Intn(accounts)
	two := (one + 1 + chance.Intn(accounts-1)) % accounts
	note := []byte(fmt.Sprintf("log/%s/%06d", kind, done))
	switch kind {
	case "async":
		txn.SetEnableAsyncCommit(true)
	case "one-phase":
		txn.SetEnable1PC(true)
		note = []byte(fmt.Sprintf("acct%02d/log%06d", one, done))
		two = (one + 1) % accounts
	}
	read := func(key []byte) ([]byte, error) { return txn.Get(ctx, key) }
	if kind == "pessimistic" {
		txn.SetPessimistic(true)
		now, err := b.client.GetTimestamp(ctx)
		if err != nil {
			return err
		}
		held := kv.NewLockCtx(now, lockWait, time.Now())
		held.InitReturnValues(2)
		if err := txn.LockKeys(ctx, held, account(one), account(two)); err != nil {
			_ = txn.Rollback()
			return err
		}
		read = func(key []byte) ([]byte, error) { return held.Values[string(key)].Value, nil }
		time.Sleep(time.Duration(chance.Intn(60)) * time.Millisecond) // others, and the cleaner, meet the claims
	}
	from, err := read(account(one))
	if err != nil {
		return err
	}
	to, err := read(account(two))
	if err != nil {
		return err
	}
	check(txn.Set(account(one), []byte(strconv.Itoa(number(from)-1))), "set")
	check(txn.Set(account(two), []byte(strconv.Itoa(number(to)+1))), "set")
	check(txn.Set(note, []byte(strconv.Itoa(one))), "set")
	if err := txn.Commit(ctx); err != nil {
		if tikverr.IsErrorUndetermined(err) {
			b.note(func(r *Report) { r.Undetermined++ })
		}
		return err
	}
	b.note(func(r *Report) { r.Committed[kind]++; r.Modes[mode]++ })
	return nil
}

func (b *bank) work(ctx context.Context, kind string, worker int, enough func() bool) {
	chance := rand.New(rand.NewSource(int64(worker)))
	for done := 0; done < 3 || !enough(); {
		begun := time.Now()
		err := b.transfer(ctx, kind, chance, worker*1000000+done)
		switch {
		case err == nil || tikverr.IsErrorUndetermined(err):
			done++
		case passing(err):
			b.note(func(r *Report) {
				r.Retried++
				if rolledBack(err) {
					r.RolledBack = append(r.RolledBack, Ended{err.Error(), time.Since(begun).Milliseconds()})
				}
			})
		default:
			check(err, kind)
		}
	}
}

func (b *bank) set(ctx context.Context, what string, change func(*transaction.KVTxn)) {
	for {
		txn, err := b.client.Begin()
		check(err, "begin")
		change(txn)
		err = txn.Commit(ctx)
		if err == nil {
			return
		}
		ensure(passing(err), "%s: %v", what, err)
	}
}

// large writes thousands of keys in one transaction, then replaces a third and deletes a third in another.
func (b *bank) large(ctx context.Context) {
	b.set(ctx, "large", func(txn *transaction.KVTxn) {
		for i := 0; i < largeKeys; i++ {
			check(txn.Set(large(i), []byte(fmt.Sprintf("first-%d-%s", i, strings.Repeat("x", i%400)))), "set")
		}
	})
	b.set(ctx, "large again", func(txn *transaction.KVTxn) {
		for i := 0; i < largeKeys; i++ {
			if i%3 == 1 {
				check(txn.Set(large(i), []byte("second")), "set")
			} else if i%3 == 2 {
				check(txn.Delete(large(i)), "delete")
			}
		}
	})
}

// deadlock lets two transactions wait for each other, and returns whether one got the error.
func (b *bank) deadlock(ctx context.Context) bool {
	first, err := b.client.Begin()
	check(err, "begin")
	second, err := b.client.Begin()
	check(err, "begin")
	first.SetPessimistic(true)
	second.SetPessimistic(true)
	check(first.LockKeysWithWaitTime(ctx, lockWait, []byte("dead1")), "lock")
	check(second.LockKeysWithWaitTime(ctx, lockWait, []byte("dead2")), "lock")
	waited := make(chan error, 1)
	go func() { waited <- first.LockKeysWithWaitTime(ctx, lockWait, []byte("dead2")) }()
	time.Sleep(50 * time.Millisecond)
	theirs := second.LockKeysWithWaitTime(ctx, lockWait, []byte("dead1"))
	learned := theirs != nil
	if learned {
		check(second.Rollback(), "rollback")
	}
	mine := <-waited
	learned = learned || mine != nil
	check(first.Rollback(), "rollback")
	if theirs == nil {
		check(second.Rollback(), "rollback")
	}
	return learned
}

// exists inserts a key that is there; whether it was refused.
func (b *bank) exists(ctx context.Context) bool {
	for {
		txn, err := b.client.Begin()
		check(err, "begin")
		check(txn.GetMemBuffer().SetWithFlags(account(0), []byte("0"), kv.SetPresumeKeyNotExists), "set")
		if err = txn.Commit(ctx); err == nil || !passing(err) {
			return tikverr.IsErrKeyExist(err)
		}
	}
}

// reading reads all keys forward, backward, and by name, at one timestamp, and compares.
func reading(ctx context.Context, client *txnkv.Client, raw *rawkv.Client) Reading {
	now, err := client.GetTimestamp(ctx)
	check(err, "timestamp")
	var found Reading
	var keys, values [][]byte
	forward, err := client.GetSnapshot(now).Iter([]byte("a"), []byte("z"))
	check(err, "scan")
	for ; forward.Valid(); check(forward.Next(), "scan") {
		keys = append(keys, append([]byte{}, forward.Key()...))
		values = append(values, append([]byte{}, forward.Value()...))
	}
	at := len(keys)
	backward, err := client.GetSnapshot(now).IterReverse([]byte("z"))
	check(err, "reverse scan")
	for ; backward.Valid() && string(backward.Key()) >= "a"; check(backward.Next(), "reverse scan") {
		at--
		ensure(at >= 0, "a reverse scan finds more than the %d keys of a scan", len(keys))
		ensure(string(backward.Key()) == string(keys[at]), "reverse scan: %s, not %s", backward.Key(), keys[at])
		ensure(string(backward.Value()) == string(values[at]), "reverse scan: the value of %s", keys[at])
	}
	ensure(at == 0, "a reverse scan finds %d keys fewer than a scan", at)
	for from := 0; from < len(keys); from += batchGet {
		to := min(from+batchGet, len(keys))
		got, err := client.GetSnapshot(now).BatchGet(ctx, keys[from:to])
		check(err, "batch get")
		ensure(len(got) == to-from, "batch get: %d of %d keys", len(got), to-from)
		for i := from; i < to; i++ {
			ensure(string(got[string(keys[i])]) == string(values[i]), "batch get: the value of %s", keys[i])
		}
	}
	digest := sha256.New()
	for i, key := range keys {
		fmt.Fprintf(digest, "%x %x\n", key, values[i])
		name := string(key)
		switch {
		case strings.Contains(name, "log"):
			found.Logged++
		case strings.HasPrefix(name, "acct"):
			found.Sum += number(values[i])
		case strings.HasPrefix(name, "big"):
			found.Large++
		}
	}
	found.Digest, found.Keys = hex.EncodeToString(digest.Sum(nil)), len(keys)
	rawKeys, rawValues, err := raw.Scan(ctx, []byte("raw"), []byte("rax"), 10000)
	check(err, "raw scan")
	down, _, err := raw.ReverseScan(ctx, []byte("rax"), []byte("raw"), 10000)
	check(err, "raw reverse scan")
	ensure(len(down) == len(rawKeys), "raw reverse scan: %d keys, not %d", len(down), len(rawKeys))
	again, err := raw.BatchGet(ctx, rawKeys)
	check(err, "raw batch get")
	digest.Reset()
	for i, key := range rawKeys {
		ensure(string(down[len(down)-1-i]) == string(key), "raw reverse scan: %s", key)
		ensure(string(again[i]) == string(rawValues[i]), "raw batch get: the value of %s", key)
		fmt.Fprintf(digest, "%x %x\n", key, rawValues[i])
	}
	found.Raw, found.RawLen = hex.EncodeToString(digest.Sum(nil)), len(rawKeys)
	return found
}

// rawWrites uses every raw command; what is left is 300 keys.
func rawWrites(ctx context.Context, raw *rawkv.Client, version kvrpcpb.APIVersion) {
	var keys, values [][]byte
	for i := 0; i < 400; i++ {
		keys, values = append(keys, rawKey(i)), append(values, []byte(fmt.Sprintf("value-%d", i)))
	}
	check(raw.BatchPut(ctx, keys, values), "raw batch put")
	check(raw.Delete(ctx, rawKey(0)), "raw delete")
	gone, err := raw.Get(ctx, rawKey(0))
	check(err, "raw get")
	ensure(gone == nil, "a deleted raw key is there")
	check(raw.Put(ctx, rawKey(0), []byte("again")), "raw put")
	check(raw.BatchDelete(ctx, keys[300:350]), "raw batch delete")
	check(raw.DeleteRange(ctx, rawKey(350), rawKey(400)), "raw delete range")
	raw.SetAtomicForCAS(true)
	before, swapped, err := raw.CompareAndSwap(ctx, rawKey(1), []byte("value-1"), []byte("swapped"))
	check(err, "raw compare and swap")
	ensure(swapped && string(before) == "value-1", "a swap over the expected value")
	before, swapped, err = raw.CompareAndSwap(ctx, rawKey(1), []byte("value-1"), []byte("never"))
	check(err, "raw compare and swap")
	ensure(!swapped && string(before) == "swapped", "no swap over another value")
	raw.SetAtomicForCAS(false)
	if version == kvrpcpb.APIVersion_V2 {
		check(raw.PutWithTTL(ctx, rawKey(2), []byte("mortal"), 10000), "raw put with ttl")
		left, err := raw.GetKeyTTL(ctx, rawKey(2))
		check(err, "raw ttl")
		ensure(left != nil && *left > 9000 && *left <= 10000, "a ttl of about 10000 s")
	}
	sum, err := raw.Checksum(ctx, []byte("raw"), []byte("rax"))
	check(err, "raw checksum")
	ensure(sum.TotalKvs == 300, "a raw checksum over %d keys", sum.TotalKvs)
}

func write(ctx context.Context, client *txnkv.Client, raw *rawkv.Client, version kvrpcpb.APIVersion, long float64) Report {
	b := &bank{client: client, report: Report{Committed: map[string]int{}, Modes: map[string]int{}, RolledBack: []Ended{}}}
	b.set(ctx, "opening", func(txn *transaction.KVTxn) {
		for i := 0; i < accounts; i++ {
			check(txn.Set(account(i), []byte(strconv.Itoa(opening))), "set")
		}
	})
	made, err := client.SplitRegions(ctx, [][]byte{account(8), account(16), large(2000), large(4000)}, true, nil)
	check(err, "split regions")
	b.report.Regions = len(made)
	fmt.Println("ready")
	until, ended := time.Now().Add(time.Duration(long*float64(time.Second))), make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	enough := func() bool {
		select {
		case <-ended:
			return time.Now().After(until)
		default:
			return false
		}
	}
	var workers sync.WaitGroup
	for i, kind := range kinds {
		for j := 0; j < 2; j++ {
			workers.Add(1)
			go func() {
				defer workers.Done()
				b.work(ctx, kind, 2*i+j, enough)
			}()
		}
	}
	b.large(ctx)
	rawWrites(ctx, raw, version)
	b.report.Deadlock = b.deadlock(ctx)
	b.report.Exists = b.exists(ctx)
	workers.Wait()
	return b.report
}

func main() {
	log.SetLevel(zapcore.FatalLevel)
	ctx := util.SetSessionID(context.Background(), 1)
	pd := []string{os.Args[2]}
	version := kvrpcpb.APIVersion_V1
	var of []txnkv.ClientOpt
	ofRaw := []rawkv.ClientOpt{}
	if os.Args[3] == "2" {
		version = kvrpcpb.APIVersion_V2
		of = append(of, txnkv.WithKeyspace("DEFAULT"))
		ofRaw = append(ofRaw, rawkv.WithKeyspace("DEFAULT"))
	}
	client, err := txnkv.NewClient(pd, append(of, txnkv.WithAPIVersion(version))...)
	check(err, "connect")
	raw, err := rawkv.NewClientWithOpts(ctx, pd, append(ofRaw, rawkv.WithAPIVersion(version))...)
	check(err, "connect raw")
	var report Report
	if os.Args[1] == "write" {
		long, err := strconv.ParseFloat(os.Args[4], 64)
		check(err, "SECONDS")
		report = write(ctx, client, raw, version, long)
	}
	report.Reading = reading(ctx, client, raw)
	line, err := json.Marshal(report)
	check(err, "report")
	fmt.Println(string(line))
	check(raw.Close(), "close raw")
	check(client.Close(), "close")
}
