"""What is small and live: election, membership, roles, assignments and announcements, in ZooKeeper."""
