#!/bin/bash
echo "throughput=$2"
