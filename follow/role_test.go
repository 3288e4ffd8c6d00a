package follow

import (
	"testing"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
	"warmpath/streams/streamstest"
)

// A follower needs no more than a router may read and one gateway may publish.
func TestTheRightsThatAFollowerNeeds(t *testing.T) {
	pools := []string{testPool}
	role, err := streams.FollowerRole(testPool, "edge-1")
	if err != nil {
		t.Fatal(err)
	}
	server := streamstest.StartRoles(t, append(streams.Roles(pools), role))
	nc, js := streamstest.Connect(t, server.URL(streams.RoleOperator))
	streamstest.Apply(t, js, 1, testPool)
	operator := &env{t, nc, js, map[string]uint64{}}
	operator.engine("a")
	last := operator.holds("a", pb.Tier_TIER_GPU, keysOf(1, 5))

	nc, js = streamstest.Connect(t, server.URL(role.User))
	e := &env{t, nc, js, map[string]uint64{}}
	f := e.follow(Config{Gateway: "edge-1", Publish: true})
	f.knows(1)
	f.reaches(last)
	d := f.decide(request(ids(1, 5)))
	if d.PredictedCachedTokens != 5*blockTokens {
		t.Errorf("predicted %d", d.PredictedCachedTokens)
	}
	if err := f.Sent(e.context(), d); err != nil {
		t.Fatal(err)
	}
	if err := f.Finished(e.context(), d, &pb.Finished{Status: pb.Status_STATUS_OK}); err != nil {
		t.Fatal(err)
	}
	f.stop() // and what was published is stored
	if got := operator.recorded(); len(got) != 2 {
		t.Errorf("recorded %v", got)
	}
}
